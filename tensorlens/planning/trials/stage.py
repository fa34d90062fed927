"""Options of a program, and the stages at which they act."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Generic, TypeVar

from tensorlens.planning.trials.jobs import NO_STEP, CannotApply, Job
from tensorlens.planning.trials.pickling import unpack
from tensorlens.planning.trials.step_runner import StepsDone, beginning, checked_step

Step = Callable[[], Any]


class Stage:
    """The program as options see it, and their notes.

    ``estimated``: it runs without data. ``batch``: argument of the function that makes the step;
    None: it has none.
    """

    def __init__(self, *, estimated: bool, batch: int | None) -> None:
        self.estimated = estimated
        self.batch = batch
        self.notes: list[str] = []


S = TypeVar("S", bound=Stage)


class Option(Generic[S]):
    """One setting; each method is a stage at which it can act."""

    unused = ""
    """Error text if the option never took effect; empty: not checked."""
    use_count = 0
    """Number of times that it took effect."""

    def __init__(self, value: Any, stage: S) -> None:
        self.value = value
        self.stage = stage

    def building(self) -> AbstractContextManager[Any]:
        """Return a context in which the step is made."""
        return nullcontext()

    def built(self) -> None:
        """Act on the models before the first step."""

    def stepping(self) -> AbstractContextManager[Any]:
        """Return a context for each step."""
        return nullcontext()

    def around(self, step: Step) -> Step:
        """Return a step to run in place of ``step``."""
        return step

    def count_use(self) -> None:
        """Count one use."""
        self.use_count += 1

    def finished(self) -> None:
        """Raise after the steps if it never took effect."""
        if self.unused and not self.use_count:
            raise CannotApply(self.unused)


B = TypeVar("B")


def repeated_blocks(
    roots: Iterable[B],
    children_of: Callable[[B], Sequence[B]],
    holds_blocks: Callable[[B], bool] = lambda _: True,
) -> list[B]:
    """Return the outermost repeated blocks of models.

    A block has children, and a sibling of its class; ``holds_blocks`` decides which parents count.
    """
    found: list[B] = []
    for root in roots:
        children = children_of(root)
        composite = [child for child in children if children_of(child)]
        classes = [type(child) for child in composite] if holds_blocks(root) else []
        blocks = [child for child in composite if classes.count(type(child)) > 1]
        found += [block for block in blocks if all(block is not known for known in found)]
        inner = [child for child in children if all(child is not block for block in blocks)]
        below = repeated_blocks(inner, children_of, holds_blocks)
        found += [block for block in below if all(block is not known for known in found)]
    return found


def missing_blocks(setting: str, models: Iterable[object], rule: str) -> CannotApply:
    """Return the error of a setting for models without repeated blocks."""
    names = ", ".join(sorted({type(model).__name__ for model in models})) or "no model"
    return CannotApply(f"{setting} finds no repeated blocks in {names}: {rule}")


class ProgramWithOptions:
    """A program with its options, in the order in which they act."""

    def __init__(
        self, job: Job, stage: Stage, options: Sequence[Option[Any]], step_of: Callable[..., Any]
    ) -> None:
        self._job = job
        self._step_of = step_of
        self.stage = stage
        self._options = options
        self.makes_keras_model = False

    def begin(self) -> Callable[[], Any] | None:
        """Make the step; None if the whole program has run."""
        with contextlib.ExitStack() as stack:
            for option in self._options:
                stack.enter_context(option.building())
            try:
                step = self._make_step()
            except StepsDone:
                if not self._options:
                    raise
                step = None
        if not self._options:
            return step
        if step is None:
            raise CannotApply(NO_STEP)
        for option in self._options:
            option.built()
        for option in self._options:
            step = option.around(step)
        return self._stepping(step)

    def finished(self) -> None:
        """Raise after the steps if an option never took effect."""
        for option in self._options:
            option.finished()

    def _make_step(self) -> Callable[[], Any] | None:
        def make_step() -> Any:
            # a setting may have changed the batch
            job = replace(self._job, batch=self.stage.batch)
            made = beginning(job)
            step = self._step_of(made, job.keras_arguments, estimated=self.stage.estimated)
            self.makes_keras_model = step is not made
            return step

        parcel = self._job.variant.parcel
        if parcel is None:
            return checked_step(make_step(), self._job.program.name)
        return checked_step(unpack(parcel)(make_step), "the option's function")

    def _stepping(self, step: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            with contextlib.ExitStack() as stack:
                for option in self._options:
                    stack.enter_context(option.stepping())
                return step()

        return run
