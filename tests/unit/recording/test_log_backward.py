from made_logs import ENGINE, OPTIMIZER, Made, user

from tensorlens.records import Context, Label

FIRST, SECOND = user(5, "forward"), user(6, "forward")
BACKWARD = user(20)


def two_lines() -> Made:
    """Backward of two lines: 100 + 40 B for the first, 8 B for the second, 2 B for neither."""
    made = Made()
    first, second = made.stack(user(1), "net", FIRST), made.stack(user(1), "net", SECOND)
    made.alloc(1000, first, Context(op="aten::addmm", grad=True))
    engine = made.stack(BACKWARD, ENGINE)
    relu = Context(op="aten::relu", node="ReluBackward0", forward=second)
    mm = Context(op="aten::mm", node="AddmmBackward0", forward=first)
    passed = made.alloc(8, engine, relu)
    gradient = made.alloc(100, engine, mm)
    made.free(passed, engine, mm)
    made.free(made.alloc(40, engine, mm), engine, mm)
    made.alloc(2, engine)
    made.free(gradient, made.stack(user(1)))
    made.log.name(gradient, Label("fc.weight.grad", "gradient"))
    return made


def test_each_byte_is_charged_to_the_line_that_made_its_node() -> None:
    costs = two_lines().recording.backward()
    assert [(cost.line.lineno, cost.nbytes, cost.blocks, cost.kept) for cost in costs] == [
        (5, 140, 2, 100),
        (6, 8, 1, 0),
        (20, 2, 1, 2),
    ]
    assert [cost.peak for cost in costs] == [140, 8, 2]
    assert [dict(cost.gradients) for cost in costs] == [{"fc.weight.grad": 100}, {}, {}]
    assert [dict(cost.nodes) for cost in costs] == [
        {"AddmmBackward0": 140},
        {"ReluBackward0": 8},
        {"not recorded": 2},
    ]


def test_backward_of_one_device() -> None:
    made = two_lines()
    node = Context(node="CopyBackward0", forward=0)
    made.alloc(64, made.stack(BACKWARD, ENGINE), node, device="cuda:0")
    recording = made.recording
    assert sum(cost.nbytes for cost in recording.backward()) == 150 + 64
    assert sum(cost.nbytes for cost in recording.backward("cpu")) == 150
    assert [cost.nodes for cost in recording.backward("cuda:0")] == [{"CopyBackward0": 64}]


def test_checkpoint_recomputation_in_the_log() -> None:
    made = Made()
    made_at = made.stack(user(1), FIRST)
    again = made.stack(BACKWARD, ENGINE, "net", SECOND)
    made.alloc(30, again, Context(op="aten::addmm", outer="aten::linear", grad=True))
    made.alloc(4, again, Context(op="aten::relu", node="Check", forward=made_at, grad=True))
    (cost,) = made.recording.backward()
    assert (cost.line.lineno, cost.nbytes) == (6, 34)
    assert cost.nodes == {"aten::linear": 30, "aten::relu": 4}


def test_freed_in_the_next_backward_pass_is_kept() -> None:
    made = Made()
    engine = made.stack(BACKWARD, ENGINE)
    node = Context(node="MulBackward0")
    within, beyond = made.alloc(1, engine, node), made.alloc(2, engine, node)
    made.alloc(16, made.stack(user(19, "load")))
    made.free(within, engine, node)
    made.alloc(16, made.stack(user(1), "net", FIRST))
    made.free(beyond, engine, node)
    (cost,) = made.recording.backward()
    assert (cost.nbytes, cost.kept) == (3, 2)


def test_freed_by_another_thread_of_the_engine() -> None:
    made = Made("cuda:0")
    node = Context(thread=1, node="MulBackward0", forward=made.stack(FIRST))
    row = made.alloc(5, -1, node)
    made.free(row, made.stack(BACKWARD, ENGINE))
    (cost,) = made.recording.backward()
    assert (cost.line.lineno, cost.nbytes, cost.kept) == (5, 5, 0)


def test_an_optimizer_in_a_hook_is_no_backward() -> None:
    made = Made()
    hook = made.stack(BACKWARD, ENGINE, user(30, "hook"), OPTIMIZER)
    made.alloc(5, hook, Context(node="AccumulateGrad"))
    assert made.recording.backward() == ()


def test_the_peak_of_a_line_is_its_own() -> None:
    made = Made()
    forward = made.stack(FIRST)
    engine = made.stack(BACKWARD, ENGINE)
    node = Context(node="MulBackward0", forward=forward)
    for size in (10, 30, 20):
        made.free(made.alloc(size, engine, node), engine, node)
    (cost,) = made.recording.backward()
    assert (cost.nbytes, cost.peak, cost.kept, cost.blocks) == (60, 30, 0, 3)


def test_each_byte_belongs_to_the_module_of_the_forward_pass() -> None:
    made = two_lines()
    first = made.stack(user(1), "net", "net.fc", FIRST)
    made.alloc(7, made.stack(BACKWARD, ENGINE), Context(node="TBackward0", forward=first))
    made.alloc(64, made.stack(BACKWARD, ENGINE), device="cuda:0")
    recording = made.recording
    assert dict(recording.backward_by_module) == {"net": 148, "net.fc": 7, None: 66}
    assert list(recording.backward_by_module) == ["net", None, "net.fc"]
    assert dict(recording.backward_modules("cuda:0")) == {None: 64}
    assert sum(recording.backward_by_module.values()) == sum(
        cost.nbytes for cost in recording.backward()
    )
