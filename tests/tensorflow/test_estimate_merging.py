"""What is left of small graphs when the function that they are the body of is made ready."""

from tensorlens.frameworks.tensorflow.estimate.building import built
from tensorlens.frameworks.tensorflow.estimate.merging import merged
from tensorlens.frameworks.tensorflow.estimate.nodes import Node, Output, connect


def connected(*nodes):
    for node in nodes:
        node.outputs = [Output("float32", ())]
    connect(nodes)
    return nodes


def test_what_hands_one_value_to_a_loop_twice_does_so_once():
    left = merged(
        connected(
            Node(0, "x", "Placeholder"),
            Node(1, "a", "Enter", [(0, 0)]),
            Node(2, "b", "Enter", [(0, 0)]),
            Node(3, "other", "Enter", [(0, 0)], signature=1),
            Node(4, "sum", "AddN", [(1, 0), (2, 0), (3, 0)]),
        )
    )
    assert [node.name for node in left] == ["x", "a", "other", "sum"]
    assert list(left[-1].inputs) == [(1, 0), (1, 0), (2, 0)]
    assert left[1].consumers == [(0, 3, 0), (0, 3, 1)]


def test_what_follows_from_constants_is_folded_and_comes_last():
    left = merged(
        connected(
            Node(0, "shape", "Const"),
            Node(1, "list", "EmptyTensorList", [(0, 0), (0, 0)]),
            Node(2, "enter", "Enter", [(1, 0)]),
        )
    )
    assert [(node.name, node.is_folded) for node in left] == [("enter", False), ("list", True)]
    assert (list(left[0].inputs), list(left[1].inputs)) == ([(1, 0)], [])


def test_a_list_that_was_folded_keeps_its_length_and_other_operations_what_they_read():
    left = merged(
        connected(
            Node(0, "shape", "Const"),
            Node(1, "length", "Const", value=7),
            Node(2, "list", "TensorListReserve", [(0, 0), (1, 0)]),
            Node(3, "rows", "TensorListFromTensor", [(0, 0), (0, 0)]),
            Node(4, "enter", "Enter", [(2, 0)]),
            Node(5, "other", "Enter", [(3, 0)]),
        )
    )
    found = {node.name: node for node in left}
    assert (found["list"].value, found["list"].is_folded) == (7, True)
    assert "length" not in found
    assert (len(found["rows"].inputs), found["rows"].is_folded) == (2, False)


def test_what_has_a_state_stays_as_often_as_it_is_there():
    left = merged(
        connected(
            Node(0, "v", "VarHandleOp"),
            Node(1, "a", "ReadVariableOp", [(0, 0)]),
            Node(2, "b", "ReadVariableOp", [(0, 0)]),
        )
    )
    assert [node.name for node in left] == ["v", "a", "b"]


def test_nodes_are_made_when_their_sources_are_there_the_first_defined_first():
    assert built([[2], [], [1], []]) == [1, 2, 0, 3]
    assert built([[], [0, 2], [1]], back={2}) == [0, 1, 2]
