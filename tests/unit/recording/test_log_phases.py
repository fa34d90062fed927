import pytest
from made_logs import CALL, ENGINE, OPTIMIZER, Made, user

from tensorlens.recording import Sites, landmark
from tensorlens.records import Context, Frame

MODULE = "layers.0"


def phase(*frames: Frame | str, context: Context | None = None) -> str:
    made = Made()
    stack = made.stack(*frames)
    number = -1 if context is None else made.log.contexts.number(context)
    return Sites(made.log)[stack, number].phase


@pytest.mark.parametrize(
    ("expected", "frames"),
    [
        ("other", ()),
        ("other", (user(1),)),
        ("forward", (user(1), MODULE)),
        ("forward", (user(1), MODULE, user(2))),
        ("backward", (user(1), ENGINE)),
        ("backward", (user(1), ENGINE, user(2), MODULE, user(3))),
        ("backward", (user(1), MODULE, user(2), ENGINE)),
        ("optimizer", (user(1), OPTIMIZER, user(2))),
        ("optimizer", (user(1), ENGINE, user(2), OPTIMIZER)),
        ("forward", (user(1), OPTIMIZER, user(2), MODULE)),
        ("backward", (user(1), OPTIMIZER, user(2), ENGINE)),
    ],
)
def test_the_stack_tells(expected: str, frames: tuple[Frame | str, ...]) -> None:
    assert phase(*frames) == expected


def test_the_context_tells_more() -> None:
    node = Context(node="MulBackward0")
    assert phase(context=node) == "backward"
    assert phase(MODULE, context=node) == "backward"
    assert phase(user(1), ENGINE, OPTIMIZER, context=node) == "optimizer"
    assert phase(user(1), context=Context(op="aten::mul", grad=True)) == "forward"
    assert phase(user(1), OPTIMIZER, context=Context(grad=True)) == "optimizer"
    assert phase(user(1), context=Context(op="aten::mul")) == "other"


def test_who_recorded_knows_best() -> None:
    assert phase(user(1), ENGINE, context=Context(node="X", phase="forward")) == "forward"
    assert phase(context=Context(phase="optimizer")) == "optimizer"


def test_torch_on_other_systems() -> None:
    windows = r"C:\env\torch\nn\modules\module.py"
    assert landmark(Frame(windows, 1, "_call_impl", False)) == "forward"
    assert landmark(Frame("torch/autograd/graph.py", 1, "_engine_run_backward")) == "backward"
    assert landmark(CALL) == "forward"


def test_lookalike_of_torch_is_no_landmark() -> None:
    assert landmark(Frame("/me/nn/modules/module.py", 1, "_call_impl")) is None
    assert landmark(Frame("/me/mytorch/nn/modules/module.py", 1, "_call_impl")) is None
    assert landmark(Frame(CALL.filename, 1, "__call__")) is None
    assert landmark(Frame(CALL.filename, 1, "wrapper")) is None
