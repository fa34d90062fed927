import pytest
from made_logs import ENGINE, FUNCTIONAL, TORCH, Made, user

from tensorlens.recording import Resident
from tensorlens.records import Context, Frame

STEP, BACKWARD = user(10), user(11)
FORWARD = user(5, "forward", "/me/model.py")


def block(made: Made, stack: int, context: Context | None = None) -> Resident:
    made.alloc(8, stack, context)
    (resident,) = made.recording.peak().tensors
    return resident


def lines(resident: Resident) -> tuple[int | None, int | None]:
    born, charged = resident.born, resident.charged
    return born.lineno if born else None, charged.lineno if charged else None


def test_outside_of_backward_the_line_that_ran() -> None:
    made = Made()
    resident = block(made, made.stack(STEP, "fc", FORWARD, FUNCTIONAL))
    assert str(resident.born) == "/me/model.py:5 in forward"
    assert resident.charged == resident.born
    assert resident.module == "fc"


def test_without_the_users_code_the_innermost_frame() -> None:
    made = Made()
    resident = block(made, made.stack("fc", FUNCTIONAL))
    assert lines(resident) == (90, 90)
    assert lines(block(Made(), -1)) == (None, None)


def test_backward_goes_to_the_line_that_made_the_node() -> None:
    made = Made()
    forward = made.stack(STEP, "net", "net.fc", FORWARD, FUNCTIONAL)
    node = Context(op="aten::mm", node="AddmmBackward0", forward=forward)
    resident = block(made, made.stack(BACKWARD, ENGINE), node)
    assert lines(resident) == (11, 5)
    assert resident.module == "net.fc"
    assert resident.phase == "backward"


def test_threads_of_the_engine_have_no_stack() -> None:
    made = Made("cuda:0")
    node = Context(thread=1, node="AddmmBackward0", forward=made.stack(STEP, "fc", FORWARD))
    resident = block(made, -1, node)
    assert lines(resident) == (None, 5)


def test_python_called_by_the_engine_has_its_line() -> None:
    made = Made()
    forward = made.stack(STEP, "net", FORWARD)
    again = made.stack(BACKWARD, ENGINE, FUNCTIONAL, "net.fc", user(7), FUNCTIONAL)
    node = Context(op="aten::addmm", node="CheckpointBackward", forward=forward, grad=True)
    resident = block(made, again, node)
    assert lines(resident) == (7, 7)
    assert resident.module == "net.fc"


def test_the_innermost_engine_counts() -> None:
    made = Made()
    forward = made.stack(BACKWARD, ENGINE, user(6), "net.fc", FORWARD)
    inner = made.stack(BACKWARD, ENGINE, user(6), ENGINE)
    resident = block(made, inner, Context(node="AddmmBackward0", forward=forward))
    assert lines(resident) == (6, 5)
    assert resident.module == "net.fc"


def test_a_node_of_an_unknown_line_goes_to_the_line_that_ran_backward() -> None:
    made = Made()
    resident = block(made, made.stack(STEP, BACKWARD, ENGINE), Context(node="Unseen"))
    assert lines(resident) == (11, 11)


def test_a_hook_of_no_module_belongs_to_the_nodes_module() -> None:
    made = Made()
    forward = made.stack(STEP, "fc", FORWARD)
    hook = made.stack(BACKWARD, ENGINE, user(30, "hook"))
    resident = block(made, hook, Context(node="AddmmBackward0", forward=forward))
    assert (lines(resident), resident.module) == ((30, 30), "fc")


def test_who_recorded_knows_the_module() -> None:
    made = Made()
    resident = block(made, made.stack(STEP, "fc"), Context(module="given"))
    assert resident.module == "given"


def test_a_long_stack() -> None:
    made = Made()
    deep = made.stack(STEP, *[Frame("/lib/deep.py", each, "deep", False) for each in range(5000)])
    assert lines(block(made, deep)) == (10, 10)


def test_backward_of_a_custom_function_goes_to_its_own_lines() -> None:
    apply = Frame(f"{TORCH}/autograd/function.py", 300, "BackwardCFunction.apply", False)
    decorator = Frame(f"{TORCH}/amp/autocast_mode.py", 500, "decorate_bwd", False)
    made = Made()
    node = Context(node="SquaredBackward", forward=made.stack(STEP, "net", FORWARD))
    own, helper = user(30, "Squared.backward"), user(40, "helper")
    for size, frames in ((1, (own,)), (2, (decorator, own)), (4, (own, helper))):
        made.alloc(size, made.stack(BACKWARD, ENGINE, apply, *frames), node)
    # a thread of the engine
    made.alloc(8, made.stack(apply, own), node)
    # torch's own function, as that of checkpoints, calls what the user wrote for forward
    again = Frame(f"{TORCH}/utils/checkpoint.py", 320, "CheckpointFunction.backward", False)
    made.alloc(16, made.stack(BACKWARD, ENGINE, apply, again, FUNCTIONAL, user(7)), node)
    # the function of a library has no line of the user
    library = Frame("/lib/attention.py", 50, "Attention.backward", False)
    made.alloc(32, made.stack(BACKWARD, ENGINE, apply, library), node)
    costs = {cost.line.lineno: cost.nbytes for cost in made.recording.backward() if cost.line}
    assert costs == {5: 32, 7: 16, 30: 1 + 2 + 8, 40: 4}


@pytest.mark.parametrize("inner", ["features.<locals>.<listcomp>", "features.<locals>.<lambda>"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_line_is_one_line_whatever_functions_begin_in_it(inner: str, is_first: bool) -> None:
    made = Made()
    functions = [inner, "features"] if is_first else ["features", inner]
    for size, function in zip((8, 16), functions, strict=True):
        made.alloc(size, made.stack(user(16, function)))
    (line,) = made.recording.peak().by_line.items()
    assert (str(line[0]), line[1]) == ("/me/train.py:16 in features", 24)
