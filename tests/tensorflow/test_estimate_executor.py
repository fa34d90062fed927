"""Graphs of a few operations, run without data: peaks counted by hand."""

import pytest

from tensorlens.planning.tensorflow.execution.executor import Executor, Order
from tensorlens.planning.tensorflow.execution.kernels import Machine
from tensorlens.planning.tensorflow.execution.live_values import Buffer, Value, keep
from tensorlens.planning.tensorflow.execution.orders import Meter, likeliest, spread
from tensorlens.planning.tensorflow.execution.step_execution import EagerRun
from tensorlens.planning.tensorflow.graph.nodes import Node, Output, connect

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


def peak(nodes, eager=False, until=None, held=None, fed=("x",), variables=()):
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
        Executor(nodes, machine).run()
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


def order_of(nodes, size, order):
    """Return the names in the order in which they run, each result of a size."""
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
    Executor(nodes, machine, order=order).run()
    return "".join(ran)


@pytest.mark.parametrize(
    ("order", "size", "names"),
    [
        (Order.FIRST_READY, 1, "xyabc"),
        (Order.FIRST_READY, 1 << 20, "xyabc"),
        # kernels that move 8 bytes are cheap, those that move 8 MiB wait, the newest in front
        (Order.CHEAP_FIRST, 1, "xyabc"),
        (Order.CHEAP_FIRST, 1 << 20, "xycba"),
    ],
)
def test_order_of_operations_that_are_ready_together(order, size, names):
    nodes = graph(
        ("x", "Placeholder", (), 1),
        ("y", "Placeholder", (), 1),
        ("a", "Cumprod", ("x",), 1),
        ("b", "Cumprod", ("x",), 1),
        ("c", "Cumprod", ("y",), 1),
    )
    assert order_of(nodes, size, order) == names


def test_bounds_are_around_the_peaks_of_all_orders():
    peaks = {Order.FIRST_READY: 100 << 20, Order.CHEAP_FIRST: 200 << 20}
    assert likeliest(peaks, has_loops=True) is Order.CHEAP_FIRST
    assert likeliest(peaks, has_loops=False) is Order.FIRST_READY
    assert spread(peaks, has_loops=False) == (95 << 20, (240 << 20) + (16 << 10))
    assert spread(peaks, has_loops=True) == (95 << 20, (300 << 20) + (16 << 10))


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
