"""Which line asked: by a recording's events, else by the traceback."""

from pathlib import Path

import pytest

from tensorlens import Recording
from tensorlens.frameworks import Request
from tensorlens.recording import failure
from tensorlens.records import ALLOC, OOM, Context, EventLog, Frame, SourceLine

HERE = __file__
TORCH = "/env/site-packages/torch"
ENGINE = Frame(f"{TORCH}/autograd/graph.py", 869, "_engine_run_backward", False)
CALL = Frame(f"{TORCH}/nn/modules/module.py", 1787, "Module._call_impl", False)


def fail():
    raise MemoryError("no room")  # asked here


def caught(function=fail):
    try:
        function()
    except MemoryError as error:
        return error
    raise AssertionError


def line_of(words):
    lines = Path(HERE).read_text("utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(words))


def test_the_traceback_tells():
    found = failure.located(Request("cpu", 8, "no room"), caught(), None)
    assert found.line == SourceLine(HERE, line_of("# asked here"), "fail")
    assert found.source == 'raise MemoryError("no room")  # asked here'
    assert (found.phase, found.op, found.module) == (None, None, None)


@pytest.mark.parametrize(
    ("place", "name", "phase"),
    [
        ("torch/autograd/graph.py", "_engine_run_backward", "backward"),
        ("torch/optim/optimizer.py", "wrapper", "optimizer"),
        ("torch/nn/modules/module.py", "_call_impl", "forward"),
    ],
)
def test_the_traceback_tells_the_phase(place, name, phase):
    names = {}
    source = f"def {name}():\n    raise MemoryError\n"
    exec(compile(source, f"/env/site-packages/{place}", "exec"), names)

    def step():
        names[name]()

    found = failure.located(Request("cpu", None, ""), caught(step), None)
    assert found.phase == phase
    assert found.line is not None
    assert (found.line.filename, found.line.function.rpartition(".")[2]) == (HERE, "step")


def test_an_error_without_traceback():
    found = failure.located(Request("cpu", None, ""), MemoryError(), None)
    assert (found.line, found.source, found.phase) == (None, None, None)


def recorded(nbytes, device="cpu"):
    """A recording whose last failed request was made in backward, of a node of line 3."""
    log = EventLog()
    forward = log.stacks.push(-1, Frame("/me/net.py", 3, "forward"))
    forward = log.stacks.push(forward, CALL, "net.fc")
    stack = log.stacks.push(log.stacks.push(-1, Frame("/me/train.py", 9, "step")), ENGINE)
    log.append(OOM, device, 0, 5, 0, -1)
    log.append(
        OOM, device, 0, nbytes, 1, stack, Context(op="aten::mm", node="Mm0", forward=forward)
    )
    log.append(ALLOC, device, 64, 5, 2, -1)
    return Recording(log)


def test_a_recording_tells_forward_line_module_op_and_the_exact_size():
    found = failure.located(Request("cpu", 4096, ""), caught(), recorded(4096))
    assert found.line == SourceLine("/me/net.py", 3, "forward")
    assert (found.module, found.op, found.phase) == ("net.fc", "aten::mm", "backward")
    rounded = Request("cuda:0", 2 << 30, "", exact=False)
    found = failure.located(rounded, caught(), recorded((2 << 30) + 512, "cuda:0"))
    assert (found.nbytes, found.exact) == ((2 << 30) + 512, True)


@pytest.mark.parametrize(
    "request_",
    [Request("cpu", 4095, ""), Request("cuda:0", 4096, ""), Request("cpu", None, "")],
    ids=["another size", "another device", "a Python object"],
)
def test_a_request_that_the_recording_did_not_see_fail(request_):
    found = failure.located(request_, caught(), recorded(4096))
    assert found.line is not None and found.line.filename == HERE
    assert found.nbytes == request_.nbytes
