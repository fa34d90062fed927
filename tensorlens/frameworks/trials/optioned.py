"""A program with an option around it: made and stepped as the option says."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.frameworks.trials.beginning import beginning
from tensorlens.frameworks.trials.jobs import Job
from tensorlens.frameworks.trials.keras_training import step_of
from tensorlens.frameworks.trials.pickling import unpack
from tensorlens.frameworks.trials.stage import CannotApply, Option, Stage
from tensorlens.frameworks.trials.steps import Enough

_NEEDS_STEP = "built-in settings need a make_step() that returns step(): this is a whole program"


class Optioned:
    """A program with an option.

    Args:
        job: what is run, and the option.
        stage: what the settings know of the program.
        options: the settings, in the order in which they act.
    """

    def __init__(self, job: Job, stage: Stage, options: Sequence[Option[Any]]) -> None:
        self._job = job
        self.stage = stage
        self._options = options

    def begin(self) -> Callable[[], Any] | None:
        """Make the step; None where the program was a whole one, which is over then.

        Raises:
            CannotApply: the option cannot work here.
            UsageError: the program is none that makes a step.
        """
        with contextlib.ExitStack() as stack:
            for option in self._options:
                stack.enter_context(option.building())
            try:
                step = self._made()
            except Enough:
                if self._options:
                    raise CannotApply(_NEEDS_STEP) from None
                raise
        if step is None:
            if self._options:
                raise CannotApply(_NEEDS_STEP)
            return None
        for option in self._options:
            option.built()
        for option in self._options:
            step = option.around(step)
        return self._stepping(step)

    def finished(self) -> None:
        """Say after the steps whether each option could do anything.

        Raises:
            CannotApply: one changed nothing.
        """
        for option in self._options:
            option.finished()

    def _made(self) -> Any:
        def make_step() -> Any:
            # a setting may have changed the batch
            made = beginning(replace(self._job, batch=self.stage.batch))
            return step_of(made, self.stage.batch, estimated=self.stage.estimated)

        parcel = self._job.choice.parcel
        step = make_step() if parcel is None else unpack(parcel)(make_step)
        if step is not None and not callable(step):
            what = self._job.program.name if parcel is None else "the option's function"
            raise UsageError(
                f"{what} returned a {type(step).__name__}: return a function that runs one step"
            )
        return step

    def _stepping(self, step: Callable[[], Any]) -> Callable[[], Any]:
        if not self._options:
            return step

        def run() -> Any:
            with contextlib.ExitStack() as stack:
                for option in self._options:
                    stack.enter_context(option.stepping())
                return step()

        return run
