"""A run that shows how a gradient is held when autograd's engine adds to it in place."""

from __future__ import annotations

from functools import cache

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tensorlens.planning.torch.operators.accumulation import accumulation
from tensorlens.planning.torch.stacks import ProgramStacks
from tensorlens.planning.torch.tracker import Tracker
from tensorlens.planning.torch.values.answers import value_patches
from tensorlens.planning.trace import Trace


@cache
def calibrate() -> None:
    """Let gradients of fake tensors be added in place, once in a process."""
    with value_patches():
        _accumulate_once()  # torch loads more of itself the first time
        accumulation.calibrate(_accumulate_once)


def _accumulate_once() -> None:
    """Add the gradients of ``sin`` and ``cos``, each a new tensor, as a program's run would."""
    trace = Trace()
    stacks = ProgramStacks(trace.log.stacks)
    with FakeTensorMode(allow_non_fake_inputs=True), stacks, Tracker(trace, stacks):
        both = torch.ones(2, requires_grad=True).exp()
        (both.sin() * both.cos()).sum().backward()
