"""Where options act: around the making of a step and around the step, from outside of both."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

from tensorlens.frameworks.trials.jobs import CannotApply

__all__ = ["CannotApply", "Option", "Stage", "Step", "wrapped"]

Step = Callable[[], Any]


class Stage:
    """What options know of the program, and what they have to say.

    Args:
        estimated: whether it runs without data.
        batch: what the function that makes the step is called with; None: nothing.
    """

    def __init__(self, *, estimated: bool, batch: int | None) -> None:
        self.estimated = estimated
        self.batch = batch
        self.notes: list[str] = []


S = TypeVar("S", bound=Stage)


class Option(Generic[S]):
    """One setting; each method is a place where it can act."""

    def __init__(self, value: Any, stage: S) -> None:
        self.value = value
        self.stage = stage

    def building(self) -> AbstractContextManager[Any]:
        """Return what is entered while the step is made."""
        return nullcontext()

    def built(self) -> None:
        """Act on the models, before the first step."""

    def stepping(self) -> AbstractContextManager[Any]:
        """Return what is entered around each step."""
        return nullcontext()

    def around(self, step: Step) -> Step:
        """Return the step to run in the place of ``step``."""
        return step

    def finished(self) -> None:
        """Say after the steps whether it could do anything.

        Raises:
            CannotApply: it changed nothing.
        """


@contextlib.contextmanager
def wrapped(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace an attribute by what ``make`` makes of it, while it is entered.

    It keeps its signature: Keras reads it with ``getfullargspec``, which follows no wrapper.
    """
    own, original = vars(owner).get(name), getattr(owner, name)
    replacement = make(original)
    if inspect.isfunction(original) and inspect.isfunction(replacement):
        replacement.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)
