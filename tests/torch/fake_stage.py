"""Runs functions on fake tensors on the CPU, with all that lets a program run there."""

import contextlib
import gc

from torch._subclasses.fake_tensor import FakeTensorMode

from tensorlens.planning import Trace, caution_scope
from tensorlens.planning.torch import (
    ProgramStacks,
    Tracker,
    program_patches,
    value_patches,
)


class Stage:
    """What a function on it did."""

    def __init__(self, tracker, said):
        self._tracker = tracker
        self.said = said

    def allocated(self):
        gc.collect()
        return self._tracker.allocated.get("cpu", 0)

    def peak(self, function):
        self._tracker.reset_peak("cpu")
        before = self._tracker.allocated.get("cpu", 0)
        function()
        return self._tracker.peaks.get("cpu", 0) - before


@contextlib.contextmanager
def staged(*more):
    """Enter all; ``more`` are called."""
    said = []
    trace = Trace()
    stacks = ProgramStacks(trace.log.stacks)
    with contextlib.ExitStack() as stack:
        # what was there before need not be looked at each time that garbage is collected
        gc.freeze()
        stack.callback(gc.unfreeze)
        enter = stack.enter_context
        enter(caution_scope(said.append))
        enter(value_patches())
        enter(program_patches())
        for each in more:
            enter(each())
        enter(FakeTensorMode(allow_non_fake_inputs=True))
        enter(stacks)
        yield Stage(enter(Tracker(trace, stacks)), said)
