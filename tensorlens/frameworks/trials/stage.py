"""Options around a program: where they act, and what they wrap or exchange on the way."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Generic, TypeVar

from tensorlens.errors import UsageError
from tensorlens.frameworks.trials.jobs import CannotApply, Job
from tensorlens.frameworks.trials.keras_training import step_of
from tensorlens.frameworks.trials.pickling import unpack
from tensorlens.frameworks.trials.steps import Enough, beginning

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


Make = Callable[[type, dict[str, Any]], Any]


@contextlib.contextmanager
def exchanging(kind: type, make: Make) -> Iterator[None]:
    """Let ``make`` make what is asked of a class and of those derived from it.

    Args:
        kind: the class.
        make: called with the class that was asked for and with the arguments by name; it returns
            an initialised instance of any class. What it makes meanwhile is made as ever.
    """
    is_inside = False

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_inside
        is_copy = not args and not kwargs and not _takes_nothing(cls)
        if is_inside or is_copy:
            return object.__new__(cls)
        is_inside = True
        try:
            made = make(cls, given(cls, args, kwargs))
        finally:
            is_inside = False
        if isinstance(made, cls):
            _initialised_once(made)
        return made

    kind.__new__ = new  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        # taken away, the class would refuse arguments ever after (object_new of CPython)
        kind.__new__ = _plain  # type: ignore[method-assign,assignment]


def given(cls: type, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the arguments of a class by name."""
    signature = inspect.signature(cls.__init__)  # type: ignore[misc]
    bound = signature.bind(None, *args, **kwargs)
    found = dict(bound.arguments)
    found.pop(next(iter(signature.parameters)), None)
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            found.update(found.pop(parameter.name, {}))
    return found


def accepted(kind: type, found: dict[str, Any], kept: tuple[str, ...]) -> dict[str, Any]:
    """Return those of the arguments kept that a class takes."""
    takes = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
    return {name: found[name] for name in kept if name in found and name in takes}


def _takes_nothing(cls: type) -> bool:
    """Tell whether an instance can be made without arguments."""
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]  # type: ignore[misc]
    loose = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return all(each.default is not each.empty or each.kind in loose for each in parameters)


def _plain(cls: type, *args: Any, **kwargs: Any) -> Any:
    return object.__new__(cls)


def _initialised_once(made: Any) -> None:
    """Keep Python from calling ``__init__`` once more, with the arguments of the first class."""
    kind = type(made)
    init = kind.__init__

    @functools.wraps(init)
    def skipping(instance: Any, *args: Any, **kwargs: Any) -> None:
        if instance is made:
            kind.__init__ = init
            return
        init(instance, *args, **kwargs)

    kind.__init__ = skipping


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
