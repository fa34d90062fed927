from made_logs import ENGINE, OPTIMIZER, Made, user

from tensorlens.recording import Resident
from tensorlens.records import Context, Label

STEP = user(10)
LINEAR = Context(op="aten::addmm", outer="aten::linear", grad=True)
NOTHING = Context()


def blocks(made: Made, *rows: int) -> list[tuple[str, str]]:
    found = made.recording.blocks(rows)
    return [(block.role, block.name) for block in found]


def only(made: Made, row: int) -> Resident:
    (block,) = made.recording.blocks([row])
    return block


def test_a_label_wins() -> None:
    made = Made()
    row = made.alloc(8, made.stack(STEP, "fc"), LINEAR)
    made.free(row, made.stack(STEP, "fc"), LINEAR)
    made.log.name(row, Label("loss", "other", "float32", (2,)))
    block = only(made, row)
    assert (block.role, block.name, block.known) == ("other", "loss", True)
    assert (block.dtype, block.shape) == ("float32", (2,))


def test_before_the_recording() -> None:
    made = Made()
    unknown = made.start(8)
    known = made.start(16, made.stack(STEP, "fc", user(4, "forward")), LINEAR)
    made.free(unknown)
    assert blocks(made, unknown, known) == [
        ("other", "before the recording"),
        ("activation", "before the recording, at train.py:4"),
    ]
    assert only(made, known).age_ns is None


def test_forward_keeps_activations_and_gives_scratch_back() -> None:
    made = Made()
    stack = made.stack(STEP, "fc")
    scratch = made.alloc(8, stack, LINEAR)
    output = made.alloc(16, stack, LINEAR)
    made.free(scratch, stack, Context(op="aten::copy_", outer="aten::linear", grad=True))
    made.free(output, made.stack(STEP), NOTHING)
    assert blocks(made, scratch, output) == [
        ("temporary", "fc: aten::linear"),
        ("activation", "fc: aten::linear"),
    ]


def test_another_operator_in_between_ended_the_first() -> None:
    made = Made()
    stack = made.stack(STEP, "fc")
    first = made.alloc(8, stack, LINEAR)
    made.alloc(8, made.stack(STEP, "relu"), Context(op="aten::relu", grad=True))
    made.free(first, stack, LINEAR)
    assert only(made, first).role == "activation"


def test_operators_are_per_thread() -> None:
    made = Made()
    stack = made.stack(STEP, "fc")
    first = made.alloc(8, stack, LINEAR)
    made.alloc(8, made.stack(user(99)), Context(thread=1, op="aten::empty"))
    made.free(first, stack, LINEAR)
    assert only(made, first).role == "temporary"


def test_backward_keeps_gradients() -> None:
    made = Made()
    stack = made.stack(STEP, ENGINE)
    forward = made.stack(STEP, "fc")
    node = Context(op="aten::mm", node="AddmmBackward0", forward=forward)
    other = Context(op="aten::t", node="AddmmBackward0", forward=forward)
    scratch = made.alloc(8, stack, node)
    gradient = made.alloc(16, stack, node)
    again = made.alloc(24, stack, Context(op="aten::relu", node="Check", grad=True))
    made.free(again, stack, Context(node="ReluBackward0"))
    assert only(made, scratch).role == "gradient"
    made.free(scratch, stack, other)
    made.free(gradient, stack, Context(node="AccumulateGrad"))
    assert blocks(made, scratch, gradient, again) == [
        ("gradient", "fc: AddmmBackward0"),
        ("gradient", "fc: AddmmBackward0"),
        ("activation", "aten::relu at train.py:10"),
    ]


def test_recomputed_tensors_are_activations() -> None:
    made = Made()
    engine, inside = made.stack(STEP, ENGINE), made.stack(STEP, ENGINE, "fc", user(4))
    node = Context(op="aten::mul", node="MulBackward0")
    again = Context(op="aten::addmm", outer="aten::linear", node="MulBackward0", grad=True)
    own = made.alloc(8, engine, node)
    computed, scratch = made.alloc(16, inside, again), made.alloc(32, inside, again)
    made.free(scratch, inside, again)
    made.free(computed, engine, node)
    made.free(own, engine, node)
    assert blocks(made, own, computed, scratch) == [
        ("temporary", "MulBackward0 at train.py:10"),
        ("activation", "fc: aten::linear"),
        ("temporary", "fc: aten::linear"),
    ]


def test_freed_while_the_same_node_runs() -> None:
    made = Made()
    stack = made.stack(STEP, ENGINE)
    scratch = made.alloc(8, stack, Context(op="aten::mm", node="AddmmBackward0"))
    made.free(scratch, stack, Context(op="aten::sum", node="AddmmBackward0"))
    assert only(made, scratch).role == "temporary"


def test_an_optimizer_keeps_its_state() -> None:
    made = Made()
    stack = made.stack(STEP, OPTIMIZER)
    state = made.alloc(8, stack, Context(op="aten::zeros_like"))
    scratch = made.alloc(8, stack, Context(op="aten::mul"))
    made.alloc(8, stack, Context(op="aten::add"))
    made.free(scratch, stack, NOTHING)
    made.alloc(8, made.stack(STEP, "fc"), LINEAR)
    made.free(state, stack, NOTHING)
    assert blocks(made, state, scratch) == [
        ("optimizer", "aten::zeros_like at train.py:10"),
        ("temporary", "aten::mul at train.py:10"),
    ]


def test_optimizer_of_a_graph_keeps_labelled_variables_alone() -> None:
    made = Made()
    update = Context(op="Mul", phase="optimizer")
    slot, scratch = (
        made.alloc(8, -1, Context(op="AddV2", phase="optimizer")),
        made.alloc(8, -1, update),
    )
    # the threads of a graph go to and fro between its phases
    made.alloc(8, -1, Context(op="MatMul", phase="backward"))
    made.free(scratch, -1, update)
    made.log.name(slot, Label("adam/kernel_velocity", "optimizer"))
    assert [role for role, _ in blocks(made, slot, scratch)] == ["optimizer", "temporary"]


def test_the_rest_is_called_by_its_line() -> None:
    made = Made()
    row = made.alloc(8, made.stack(user(12, "load")))
    bare = made.alloc(8)
    module = made.alloc(8, made.stack(STEP, "fc", user(3, "forward")))
    assert blocks(made, row, bare, module) == [
        ("other", "load() at train.py:12"),
        ("other", "no stack recorded"),
        ("activation", "fc: train.py:3"),
    ]


def test_names_of_the_dead_are_those_of_the_living() -> None:
    made = Made()
    stack, forward = made.stack(STEP, ENGINE), made.stack(STEP, "fc")
    node = Context(op="aten::mm", node="AddmmBackward0", forward=forward)
    weight, bias, weight_scratch = (made.alloc(size, stack, node) for size in (64, 8, 64))
    made.free(weight_scratch, stack, node)
    made.alloc(1, made.stack(STEP, "fc"), LINEAR)
    for row in (weight, bias):
        made.free(row, made.stack(STEP), NOTHING)
    living = made.alloc(64, stack, node)
    made.log.name(living, Label("fc.weight.grad", "gradient"))
    assert blocks(made, weight, bias, weight_scratch) == [
        ("gradient", "fc.weight.grad"),
        ("gradient", "fc: AddmmBackward0"),
        ("temporary", "fc: AddmmBackward0"),
    ]
    assert not only(made, weight).known


def test_names_of_freed_blocks_of_any_thread() -> None:
    made = Made()
    update = "adam/AssignSubVariableOp"
    stack = made.stack(STEP)
    dead, living = (
        made.alloc(64, stack, Context(thread=thread, op=update, phase="optimizer"))
        for thread in (1, 5)
    )
    other = made.alloc(64, stack, Context(thread=5, op="adam/Mul", phase="optimizer"))
    made.log.name(living, Label("dense/kernel", "parameter"))
    assert blocks(made, dead, other) == [
        ("parameter", "dense/kernel"),
        ("temporary", "adam/Mul at train.py:10"),
    ]


def test_the_living_disagree() -> None:
    made = Made()
    stack = made.stack(STEP, "fc")
    rows = [made.alloc(8, stack, LINEAR) for _ in range(3)]
    made.log.name(rows[0], Label("a", "input"))
    made.log.name(rows[1], Label("b", "input"))
    assert blocks(made, rows[2]) == [("input", "fc: aten::linear")]
    made.log.name(rows[1], Label("b", "buffer"))
    assert blocks(made, rows[2]) == [("activation", "fc: aten::linear")]


def test_blocks_of_which_nothing_is_known_are_not_alike() -> None:
    made = Made()
    named, unnamed = made.start(8), made.start(8)
    made.log.name(named, Label("fc.weight", "parameter"))
    assert blocks(made, unnamed) == [("other", "before the recording")]


def test_saved_tensor_has_the_module_that_made_it() -> None:
    made = Made()
    saved = Label("MmBackward0.self", "activation")
    for module, label in (
        ("fc", saved),
        (None, saved),
        ("fc", Label("net: MmBackward0.self", "activation")),
    ):
        path = [module] if module else []
        made.log.name(made.alloc(8, made.stack(STEP, *path), LINEAR), label)
    assert [name for _, name in blocks(made, 0, 1, 2)] == [
        "fc: MmBackward0.self",
        "MmBackward0.self",
        "net: MmBackward0.self",
    ]


def test_an_input_that_a_module_made_is_an_activation() -> None:
    made = Made()
    for path in ([], ["net", "attention"]):
        made.log.name(made.alloc(8, made.stack(STEP, *path), LINEAR), Label("keys", "input"))
    assert blocks(made, 0, 1) == [("input", "keys"), ("activation", "keys")]
    assert made.recording.peak().by_role == {"input": 8, "activation": 8}
