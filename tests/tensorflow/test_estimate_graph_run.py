"""Graphs of a few operations, run without data: peaks counted by hand."""

import tensorflow as tf

from tensorlens.planning.tensorflow import (
    Graph,
    GraphNode,
    GraphRunner,
    NodeOutput,
    eager_lasts,
    kernels,
    linked,
    nodes_of,
)
from tests.tensorflow.estimate_requests import Requests

KIB = 1024
ROW = NodeOutput("float32", (256,))
"""1 KiB."""
NUMBER = NodeOutput("int32", ())


def graph(*operations, results=(), **attrs):
    """Number the operations: (name, type, inputs, outputs); placeholders are its arguments.

    The last one's is the result where none is named.
    """
    numbers = {name: number for number, (name, *_) in enumerate(operations)}
    nodes = []
    for number, (name, op, inputs, outputs) in enumerate(operations):
        sources = [(numbers[each], 0) for each in inputs]
        nodes.append(GraphNode(number, name, op, sources, (), [ROW] * outputs, attrs.get(name, {})))
    arguments = [numbers[name] for name, op, *_ in operations if op == "Placeholder"]
    results = results or [name for name, *_, outputs in operations[-1:] if outputs]
    return Graph(nodes, arguments, [(numbers[name], 0) for name in results])


def peak(step, eager=False, until=None, held=None, variables=(), functions=None):
    requests = Requests()

    def there():
        return kernels.keep(kernels.Value(kernels.Buffer(KIB, requests.take(KIB, None)), (256,)))

    known = {name: there() for name in variables}
    machine = GraphRunner(requests, known, lambda *_: (), lambda node: None, not eager)
    step = linked(step, functions or {}, as_written=eager)
    names = {node.number: node.name for node in step.nodes}
    given = [kernels.Value(variable=names[each]) for each in step.arguments if names[each] in known]
    fed = [there() for _ in range(len(step.arguments) - len(given))]
    lasts = eager_lasts(step, until or {}, held or {}) if eager else None
    for value in machine.run_graph(step, [*given, *map(kernels.keep, fed)], lasts):
        kernels.drop(value, machine.free)
    left = len(fed) + len(known)
    assert requests.now == left * KIB, "what was there before is there, and nothing else"
    return requests.peak


def test_a_chain_is_computed_in_place_but_for_what_is_fed():
    nodes = graph(
        ("x", "Placeholder", (), 1),
        ("a", "Exp", ("x",), 1),
        ("b", "Exp", ("a",), 1),
        ("c", "Exp", ("b",), 1),
    )
    assert peak(nodes) == 2 * KIB


def test_python_writes_over_nothing():
    nodes = graph(("x", "Placeholder", (), 1), ("a", "Exp", ("x",), 1), ("b", "Exp", ("a",), 1))
    assert peak(nodes, eager=True) == 3 * KIB


def test_buffer_still_read_is_not_forwarded():
    nodes = graph(
        ("x", "Placeholder", (), 1),
        ("a", "Exp", ("x",), 1),
        ("b", "Exp", ("a",), 1),
        ("c", "Mul", ("a", "b"), 1),
    )
    assert peak(nodes) == 3 * KIB


def test_saved_tensors_live_until_backward():
    nodes = graph(
        ("x", "Placeholder", (), 1),
        ("a", "Exp", ("x",), 1),
        ("b", "Neg", ("a",), 1),
        ("c", "Neg", ("b",), 1),
    )
    assert peak(nodes, eager=True) == 3 * KIB
    assert peak(nodes, eager=True, until={1: 3}) == 4 * KIB


def test_aliased_buffers_live_as_long_as_the_result():
    nodes = graph(
        ("x", "Placeholder", (), 1),
        ("a", "Exp", ("x",), 1),
        ("b", "Sigmoid", ("a",), 1),
        ("c", "Sigmoid", ("b",), 1),
        ("d", "Neg", ("c",), 1),
        ("e", "Neg", ("d",), 1),
    )
    assert peak(nodes, eager=True, until={2: 5}) == 4 * KIB
    # x, a, b, d and e: what c refers to goes with it
    assert peak(nodes, eager=True, until={2: 5}, held={2: 1}) == 5 * KIB
    # and all six where one keeps the other
    assert peak(nodes, eager=True, until={3: 5}, held={2: 1, 3: 2}) == 6 * KIB


def test_a_variable_that_is_still_read_is_copied_before_it_is_updated():
    steps = (
        ("v", "Placeholder", (), 1),
        ("x", "Placeholder", (), 1),
        ("read", "ReadVariableOp", ("v",), 1),
    )
    update = ("update", "AssignAddVariableOp", ("v", "x"), 0)
    alone = graph(*steps[:2], update)
    assert peak(alone, variables=("v",)) == 2 * KIB
    read_later = graph(*steps, update, ("a", "Exp", ("read",), 1))
    assert peak(read_later, eager=True, variables=("v",)) == 4 * KIB


def loop(states, *body, results):
    """A loop of three passes: its counter is the first of its values."""
    arguments = [(name, "Placeholder", (), 1) for name in ("i", *states)]
    condition = graph(
        *arguments, ("n", "Const", (), 1), ("less", "Less", ("i", "n"), 1), results=("less",)
    )
    inner = graph(
        *arguments,
        ("one", "Const", (), 1),
        ("add", "AddV2", ("i", "one"), 1),
        *body,
        results=("add", *results),
    )
    for each in (*condition.nodes, *inner.nodes):
        if each.name in ("n", "one", "i", "add", "less"):
            each.outputs = [NUMBER]
        each.value = {"n": 3, "one": 1}.get(each.name)
    return {"condition": condition, "body": inner}


WHILE = {"loop": {"cond": "condition", "body": "body"}}


def in_a_loop(*operations, stacked):
    step = graph(
        ("x", "Placeholder", (), 1),
        ("zero", "Const", (), 1),
        ("list", "EmptyTensorList", (), 1),
        *operations,
        **WHILE,
    )
    step.nodes[1].value, step.nodes[1].outputs = 0, [NUMBER]
    if stacked:
        step.nodes[-1].inputs = [(step.nodes[-2].number, 1)]
        step.nodes[-1].outputs = [NodeOutput("float32", (3, 256))]
    return step


PUSH = ("exp", "Exp", ("x",), 1), ("push", "TensorListPushBack", ("items", "exp"), 1)


def test_a_loop_runs_as_often_as_its_condition_says():
    functions = loop(("items", "x"), *PUSH, results=("push", "x"))
    step = in_a_loop(
        ("loop", "While", ("zero", "list", "x"), 3),
        ("stack", "TensorListStack", ("loop",), 1),
        stacked=True,
    )
    # what is fed, three results in the list, their copies stacked; counters have 4 B at most each
    assert 7 * KIB <= peak(step, functions=functions) <= 7 * KIB + 16


def test_unread_loop_results_are_not_computed():
    functions = loop(("items", "x"), *PUSH, results=("push", "x"))
    step = in_a_loop(("loop", "While", ("zero", "list", "x"), 3), stacked=False)
    assert peak(step, functions=functions) <= KIB + 16


def test_a_slice_whose_shape_only_a_run_knows_is_where_its_rows_are():
    requests = Requests()
    machine = GraphRunner(requests, {}, lambda *_: (), lambda node: None)
    whole = kernels.keep(
        kernels.Value(kernels.Buffer(4 * KIB, requests.take(4 * KIB, None)), (4, 16, 16))
    )

    def sliced(part):
        traced = tf.function(part).get_concrete_function(tf.TensorSpec((4, 16, 16))).graph
        nodes = nodes_of(traced.as_graph_def().node, traced)
        (node,) = [each for each in nodes if each.op == "StridedSlice"]
        node.outputs = [NodeOutput("float32", None)]
        numbers = [kernels.Value(number=nodes[number].value) for number, _ in node.inputs[1:]]
        (found,), _ = machine.run(node, [whole, *numbers])
        return found

    rows, columns = sliced(lambda x: x[1:3]), sliced(lambda x: x[:, 1:3])
    assert (rows.held, rows.shape, rows.nbytes) == (whole.held, (2, 16, 16), 2 * KIB)
    assert (columns.shape, columns.nbytes) == ((4, 2, 16), 4 * 2 * 16 * 4)
    assert columns.held is not whole.held
    assert requests.peak == 4 * KIB + columns.nbytes


def test_unmodelled_tensor_list_is_noted_and_empty():
    def gathered(x):
        array = tf.TensorArray(tf.float32, 4).unstack(x)
        return tf.gradients(array.gather([0, 2]), x)

    traced = tf.function(gathered).get_concrete_function(tf.TensorSpec((4, 256))).graph
    nodes = nodes_of(traced.as_graph_def().node, traced)
    (number,) = [each.number for each in nodes if each.op == "TensorListScatterIntoExistingList"]
    told, requests = [], Requests()
    machine = GraphRunner(requests, {}, lambda *_: (), told.append)
    whole = kernels.Value(kernels.Buffer(4 * KIB, requests.take(4 * KIB, None)), (4, 256))
    (made,) = machine.run_graph(Graph(nodes, [0], [(number, 0)]), [kernels.keep(whole)])
    assert [each.op for each in told] == ["TensorListScatterIntoExistingList"]
    assert made.held.values == []


def test_a_scalar_that_a_list_does_not_have_is_a_scalar():
    requests = Requests()
    machine = GraphRunner(requests, {}, lambda *_: (), lambda node: None)
    row = kernels.Value(kernels.Buffer(KIB, requests.take(KIB, None)), (256,))
    items = kernels.Items([row, kernels.NOTHING])
    node = GraphNode(0, "item", "TensorListGetItem", outputs=[NodeOutput("float32", ())])
    (read,), _ = machine.run(node, [kernels.Value(items), kernels.Value(number=1)])
    assert (read.shape, read.nbytes) == ((), 4)
