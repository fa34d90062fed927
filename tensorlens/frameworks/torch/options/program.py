"""A program with an option around it: made and stepped as the option says."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tensorlens.errors import UsageError
from tensorlens.frameworks.torch.fake.jobs import Program
from tensorlens.frameworks.torch.fake.parcels import unpack
from tensorlens.frameworks.torch.fake.steps import Enough, beginning
from tensorlens.frameworks.torch.options.activations import (
    Autocast,
    ChannelsLast,
    Checkpoint,
    Compile,
    Offload,
)
from tensorlens.frameworks.torch.options.gradients import Accumulate, SetToNone
from tensorlens.frameworks.torch.options.optimizers import Optimizers
from tensorlens.frameworks.torch.options.sharding import Shards
from tensorlens.frameworks.torch.options.stage import Option, Stage
from tensorlens.frameworks.trials import CannotApply, Choice

_KINDS: dict[str, type[Option]] = {
    "set_to_none": SetToNone,
    "shards": Shards,
    "channels_last": ChannelsLast,
    "checkpoint": Checkpoint,
    "autocast": Autocast,
    "offload": Offload,
    "compile": Compile,
    "accumulate": Accumulate,
}
"""In the order in which they act on a model: what is checkpointed is compiled, not the reverse."""
_NEEDS_STEP = "built-in settings need a make_step() that returns step(): this is a whole program"
_OF_OPTIMIZERS = ("optimizer", "fused", "foreach")


def begin(program: Program, choice: Choice, batch: int | None = None) -> Any:
    """Begin a program on tensors without data, with an option; return its step."""
    optioned = Optioned(program, choice, batch, estimated=True)
    step = optioned.begin()
    if step is None:
        return None

    def checked() -> None:
        step()
        optioned.finished()

    return checked


def begin_batch(batch: int, program: Program, choice: Choice, times: int = 1) -> Any:
    """Begin it with a batch, the first argument, of so many ``times`` the number."""
    return begin(program, choice, batch * times)


class Optioned:
    """A program with an option.

    Args:
        program: what is run.
        choice: the option.
        batch: what the function that makes the step is called with; None: nothing.
        estimated: whether it runs on tensors without data.

    Raises:
        CannotApply: the option cannot work here.
    """

    def __init__(
        self, program: Program, choice: Choice, batch: int | None, *, estimated: bool
    ) -> None:
        self._program = program
        self._choice = choice
        self.stage = Stage(estimated=estimated, batch=batch)
        self._options = list(_options(choice.settings, self.stage))

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
        positional = () if self.stage.batch is None else (self.stage.batch,)
        program, arguments = self._program, self._choice.arguments

        def make_step() -> Any:
            return beginning(program, positional, arguments)

        parcel = self._choice.parcel
        step = make_step() if parcel is None else unpack(parcel)(make_step)
        if step is not None and not callable(step):
            what = program.name if parcel is None else "the option's function"
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


def _options(settings: Mapping[str, Any], stage: Stage) -> Any:
    of_optimizers = {name: settings[name] for name in _OF_OPTIMIZERS if name in settings}
    if of_optimizers:
        yield Optimizers(of_optimizers, stage)
    for name, kind in _KINDS.items():
        if name in settings:
            yield kind(settings[name], stage)
    if "alloc_conf" in settings and not stage.estimated and not torch.cuda.is_available():
        raise CannotApply("alloc_conf is of CUDA's caching allocator, and there is no CUDA device")
