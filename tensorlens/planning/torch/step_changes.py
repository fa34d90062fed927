"""Steps changed from outside: a variable freed before backward, gradients gone before the step.

torch is imported where a step is changed, in the process of the program.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from traceback import walk_stack
from types import FrameType
from typing import Any

from tensorlens.heap import instances
from tensorlens.planning.patches import intercepted
from tensorlens.planning.step_facts import UnusedVariable
from tensorlens.planning.trials.jobs import CannotApply


def freed_before_backward(
    waiting: UnusedVariable, make_step: Callable[[], Callable[[], Any]]
) -> Callable[[], Any]:
    """Make the step, and return it with a variable set to None where ``backward()`` is called.

    Args:
        waiting: the variable, of a function that does not look at it again.
        make_step: makes the step.

    The step raises CannotApply where ``backward()`` is not called from that line of the function.
    """
    import torch

    step, freed = make_step(), 0

    def freeing(backward: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal freed
        frame = _frame_of(waiting)
        if frame is not None:
            _set_to_none(frame, waiting.name)
            freed += 1
            del frame
        return backward(*args, **kwargs)

    def run() -> Any:
        with intercepted(freeing, (torch.Tensor, "backward"), (torch.autograd, "backward")):
            result = step()
        if not freed:
            raise CannotApply(f"backward() was not called from line {waiting.lineno} of the step")
        return result

    return run


def _frame_of(waiting: UnusedVariable) -> FrameType | None:
    place = waiting.filename, waiting.lineno
    frames = walk_stack(sys._getframe(2))
    return next(
        (frame for frame, line in frames if (frame.f_code.co_filename, line) == place), None
    )


def _set_to_none(frame: FrameType, name: str) -> None:
    variables = frame.f_locals
    if sys.version_info >= (3, 13):
        variables[name] = None
        return
    # a copy, which would keep the others: it is emptied, and one name of it written back
    variables.clear()
    variables[name] = None
    ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def gradients_first(make_step: Callable[[], Callable[[], Any]]) -> Callable[[], Any]:
    """Make the step, and return it with ``zero_grad()`` of all optimizers called before it."""
    import torch

    step = make_step()
    optimizers = instances(torch.optim.Optimizer)

    def run() -> Any:
        for optimizer in optimizers:
            optimizer.zero_grad()
        return step()

    return run
