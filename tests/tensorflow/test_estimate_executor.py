"""Graphs of a few operations, run without data: peaks counted by hand."""

from math import prod

import pytest

from tensorlens.frameworks.tensorflow.estimate.costs import seconds
from tensorlens.frameworks.tensorflow.estimate.eager import EagerRun
from tensorlens.frameworks.tensorflow.estimate.edge_sets import in_order
from tensorlens.frameworks.tensorflow.estimate.edges import Building
from tensorlens.frameworks.tensorflow.estimate.executor import Executor
from tensorlens.frameworks.tensorflow.estimate.held import Buffer, Value, keep
from tensorlens.frameworks.tensorflow.estimate.kernels import Machine
from tensorlens.frameworks.tensorflow.estimate.nodes import Node, Output, connect
from tensorlens.frameworks.tensorflow.estimate.onednn import rewritten
from tensorlens.frameworks.tensorflow.estimate.orders import Meter

KIB = 1024
ROW = Output("float32", (256,))
"""1 KiB."""


def graph(*operations, **attrs):
    """Number the operations: (name, type, inputs, outputs)."""
    numbers = {name: number for number, (name, *_) in enumerate(operations)}
    nodes = []
    for number, (name, op, inputs, outputs) in enumerate(operations):
        sources = []
        for each in inputs:
            source, _, slot = each.partition(":")
            sources.append((numbers[source], int(slot or 0)))
        made = [Output("float32", (256,))] * outputs
        nodes.append(Node(number, name, op, sources, (), made, attrs.get(name, {})))
    connect(nodes)
    return nodes


def peak(nodes, eager=False, threads=1, until=None, held=None, fed=("x",), variables=()):
    meter = Meter()

    def there():
        return keep(Value(Buffer(KIB, meter.take(KIB, None)), (256,)))

    machine = Machine(
        meter,
        {name: there() for name in variables},
        {name: there() for name in fed},
        lambda node, values: (),
        lambda node: None,
        forwards=not eager,
    )
    if eager:
        EagerRun(nodes, machine, until or {}, held=held).run()
    else:
        Executor(nodes, machine, threads).run()
    left = len(fed) + len(variables)
    assert meter._now == left * KIB, "what was there before is there, and nothing else"
    return meter.peak


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


def test_what_another_operation_reads_is_not_written_over():
    nodes = graph(
        ("x", "Placeholder", (), 1),
        ("a", "Exp", ("x",), 1),
        ("b", "Exp", ("a",), 1),
        ("c", "Mul", ("a", "b"), 1),
    )
    assert peak(nodes) == 3 * KIB


def test_what_a_tape_keeps_lives_until_backward_has_read_it():
    nodes = graph(
        ("x", "Placeholder", (), 1),
        ("a", "Exp", ("x",), 1),
        ("b", "Neg", ("a",), 1),
        ("c", "Neg", ("b",), 1),
    )
    assert peak(nodes, eager=True) == 3 * KIB
    assert peak(nodes, eager=True, until={1: 3}) == 4 * KIB


def test_what_a_result_refers_to_lives_as_long():
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
        ("v", "VarHandleOp", (), 1),
        ("x", "Placeholder", (), 1),
        ("read", "ReadVariableOp", ("v",), 1),
    )
    update = ("update", "AssignAddVariableOp", ("v", "x"), 0)
    alone = graph(*steps[:2], update)
    assert peak(alone, variables=("v",)) == 2 * KIB
    read_later = graph(*steps, update, ("a", "Exp", ("read",), 1))
    assert peak(read_later, eager=True, variables=("v",)) == 4 * KIB


def test_a_loop_runs_as_often_as_its_condition_says():
    frame = {"frame_name": "loop", "parallel_iterations": 1}
    constant = {**frame, "is_constant": True}
    nodes = graph(
        ("x", "Placeholder", (), 1),
        ("zero", "Const", (), 1),
        ("one", "Const", (), 1),
        ("three", "Const", (), 1),
        ("list", "EmptyTensorList", (), 1),
        ("enter i", "Enter", ("zero",), 1),
        ("enter list", "Enter", ("list",), 1),
        ("enter x", "Enter", ("x",), 1),
        ("enter one", "Enter", ("one",), 1),
        ("enter three", "Enter", ("three",), 1),
        ("i", "Merge", ("enter i", "next i"), 2),
        ("items", "Merge", ("enter list", "next list"), 2),
        ("less", "Less", ("i", "enter three"), 1),
        ("on", "LoopCond", ("less",), 1),
        ("switch i", "Switch", ("i", "on"), 2),
        ("switch items", "Switch", ("items", "on"), 2),
        ("add", "AddV2", ("switch i:1", "enter one"), 1),
        ("exp", "Exp", ("enter x",), 1),
        ("push", "TensorListPushBack", ("switch items:1", "exp"), 1),
        ("next i", "NextIteration", ("add",), 1),
        ("next list", "NextIteration", ("push",), 1),
        ("exit", "Exit", ("switch items:0",), 1),
        ("stack", "TensorListStack", ("exit",), 1),
        **{
            "enter i": frame,
            "enter list": frame,
            "enter x": constant,
            "enter one": constant,
            "enter three": constant,
        },
    )
    for name, value in (("zero", 0), ("one", 1), ("three", 3)):
        node = next(each for each in nodes if each.name == name)
        node.value = value
        node.outputs = [Output("int32", ())]
    for name in ("add", "less", "i"):
        node = next(each for each in nodes if each.name == name)
        node.outputs = [Output("int32", ())] * len(node.outputs)
    stack = nodes[-1]
    stack.outputs = [Output("float32", (3, 256))]
    # what is fed, three results in the list, their copies stacked; counters have 4 B at most each
    assert 7 * KIB <= peak(nodes) <= 7 * KIB + 16


def wide(width):
    """Make as many rows of a list as it has, and add them up."""
    return graph(
        ("x", "Placeholder", (), 1),
        *((f"a{number}", "Cumprod", ("x",), 1) for number in range(width)),
        ("sum", "AddN", [f"a{number}" for number in range(width)], 1),
    )


def readers(nodes, seed):
    edges = Building(nodes, by_onednn=True).edges(seed)
    return [reader for _, reader, _ in edges.consumers[0]]


def test_more_than_eight_edges_have_the_order_of_a_hash_set():
    eight, nine = wide(8), wide(9)
    assert readers(eight, 0) == readers(eight, 1) == readers(eight, 2) == list(range(1, 9))
    assert readers(nine, 0) == list(range(1, 10))
    orders = {tuple(readers(nine, seed)) for seed in range(1, 9)}
    assert len(orders) > 1
    assert all(sorted(each) == list(range(1, 10)) for each in orders)


def test_the_order_of_a_hash_set_follows_from_addresses():
    edges = [(32 * number, each) for number, each in enumerate("abcdefghi")]
    assert in_order(edges[:8], 0x10000, at_once=True) == list("abcdefgh")
    assert in_order(edges, None, at_once=True) == list("abcdefghi")
    # (address + address // 64) // 256 is 260 of the first eight and 261 of the ninth; of 16 places
    # those are the 4th and 5th, and one that is taken leads on to the 1st, 3rd, 6th, ... after it:
    # a 4, b 5, c 7, d 10, e 14, f 19 - 16, g 25 - 16, h 32 - 32, i 6
    assert in_order(edges, 0x10000, at_once=True) == list("hfabicgde")


def test_a_filter_and_its_bias_have_one_kernel_for_their_gradients():
    nodes = graph(
        ("x", "Placeholder", (), 1),
        ("sizes", "Const", (), 1),
        ("grad", "Placeholder", (), 1),
        ("bias", "BiasAddGrad", ("grad",), 1),
        ("filter", "Conv2DBackpropFilter", ("x", "sizes", "grad"), 1),
        ("a", "Exp", ("bias",), 1),
        ("b", "Exp", ("filter",), 1),
    )
    x, sizes, grad, both, a, b = rewritten(nodes)
    assert [node.number for node in (x, sizes, grad, both, a, b)] == list(range(6))
    assert (both.name, len(both.outputs)) == ("filter", 2)
    assert (list(a.inputs), list(b.inputs)) == ([(3, 1)], [(3, 0)])
    assert grad.consumers == [(0, 3, 2)]
    assert sorted(both.consumers) == [(0, 5, 0), (1, 4, 0)]


def test_what_waits_for_nothing_is_begun_before_what_waits_for_it():
    nodes = graph(
        ("x", "Placeholder", (), 1),
        ("y", "Placeholder", (), 1),
        ("a", "Cumprod", ("x",), 1),
        ("b", "Cumprod", ("y",), 1),
    )
    # the thread has y to run when a is ready, and hands a on; b it keeps
    assert order_of(nodes, 1 << 20) == ["x", "y", "b", "a"]


def test_what_only_orders_is_told_after_what_is_handed_on():
    nodes = graph(("x", "Placeholder", (), 1), ("a", "NoOp", (), 0), ("b", "Cumprod", ("x",), 1))
    nodes[1].controls = [0]
    for node in nodes:
        node.consumers.clear()
    connect(nodes)
    assert readers(nodes, 0) == [2, 1]


def test_operations_of_onednn_are_added_last():
    nodes = graph(
        ("x", "Placeholder", (), 1),
        ("product", "MatMul", ("x", "x"), 1),
        ("a", "Cumprod", ("x",), 1),
    )
    assert readers(nodes, 0) == [2, 1, 1]


def order_of(nodes, size):
    """Return the names in the order in which one thread runs them, each result of a size."""
    for node in nodes:
        node.outputs = [Output("float32", (size,))]
    ran = []
    there = {each: keep(Value(Buffer(4 * size, 0), (size,))) for each in "xy"}
    machine = Machine(
        Meter(),
        {},
        there,
        lambda node, values: ran.append(node.name) or (),
        lambda node: None,
    )
    Executor(nodes, machine, 1).run()
    return ran


def test_short_kernels_are_run_by_the_thread_itself():
    def order(size):
        nodes = graph(
            ("x", "Placeholder", (), 1),
            *((name, "Cumprod", ("x",), 1) for name in "abc"),
        )
        return "".join(order_of(nodes, size)[1:])

    # of long ones a thread keeps the last and hands the others on, newest in front
    assert order(1) == "abc"
    assert order(1 << 20) == "cba"


def test_to_read_a_variable_is_short_whatever_its_size():
    node = Node(0, "read", "ReadVariableOp", [(1, 0)], outputs=[Output("float32", (1 << 20,))])
    assert seconds(node, [Value(Buffer(4 << 20, -1), (1 << 20,))]) < 1e-6


def test_what_is_written_element_by_element_takes_long():
    shapes = ((32, 256), (32, 768))
    part, whole = (Value(Buffer(4 * prod(shape), -1), shape) for shape in shapes)
    made = [Output("float32", whole.shape)]
    scattered = Node(0, "back", "StridedSliceGrad", [(1, 0)], outputs=made)
    copied = Node(0, "copy", "Pad", [(1, 0)], outputs=made)
    more = seconds(scattered, [part]) - seconds(copied, [part])
    # 24,576 elements, at 3 ns each
    assert more == pytest.approx(73.7e-6, rel=1e-3)


def test_how_long_a_product_takes_is_known_without_its_shape():
    node = Node(0, "product", "MatMul", [(1, 0), (2, 0)], outputs=[Output("float32", None)])
    known = Node(0, "product", "MatMul", [(1, 0), (2, 0)], outputs=[Output("float32", (8, 32))])
    values = [Value(Buffer(8 * 16 * 4, -1), (8, 16)), Value(Buffer(16 * 32 * 4, -1), (16, 32))]
    assert seconds(node, values) == seconds(known, values) > 2 * 8 * 16 * 32 / 1e12


def test_a_slice_whose_shape_only_a_run_knows_is_where_its_rows_are():
    meter = Meter()
    machine = Machine(meter, {}, {}, lambda node, values: (), lambda node: None)
    whole = keep(Value(Buffer(4 * KIB, meter.take(4 * KIB, None)), (4, 16, 16)))

    def sliced(begin, end, **masks):
        numbers = [Value(numbers=each) for each in (begin, end, (1,) * len(begin))]
        made = [Output("float32", None)]
        node = Node(0, "part", "StridedSlice", [(1, 0)] * 4, outputs=made, attrs=masks)
        (found,), _ = machine.run(node, [whole, *numbers])
        return found

    rows, columns = sliced((1,), (3,)), sliced((0, 1), (0, 3), begin_mask=1, end_mask=1)
    assert (rows.held, rows.shape, rows.nbytes) == (whole.held, (2, 16, 16), 2 * KIB)
    assert (columns.shape, columns.nbytes) == ((4, 2, 16), 4 * 2 * 16 * 4)
    assert columns.held is not whole.held
    assert meter.peak == 4 * KIB + columns.nbytes
