"""Where options act: around the making of a step and around the step, from outside of both."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from tensorlens.frameworks.trials import CannotApply

__all__ = ["CannotApply", "Option", "Stage"]

Step = Callable[[], Any]


class Stage:
    """What options know of the program, and what they have to say.

    Args:
        estimated: whether it runs on tensors without data.
        batch: what the function that makes the step is called with; None: nothing.
    """

    def __init__(self, *, estimated: bool, batch: int | None) -> None:
        self.estimated = estimated
        self.batch = batch
        self.notes: list[str] = []

    def models(self) -> list[torch.nn.Module]:
        """Return the modules with parameters that are in no other one, in the order they came.

        Every module alive is looked at, wherever it is kept; no code of theirs runs.
        """
        found = [item for item in gc.get_objects() if issubclass(type(item), torch.nn.Module)]
        inside = {
            id(child) for module in found for child in (vars(module).get("_modules") or {}).values()
        }
        return [module for module in found if id(module) not in inside and _has_parameters(module)]

    def device_type(self) -> str:
        """Return the type of the device that the first parameter is on: ``cuda``, ``cpu``."""
        for model in self.models():
            for parameter in model.parameters():
                return str(parameter.device.type)
        raise CannotApply("no model: no nn.Module with parameters is alive after make_step()")


class Option:
    """One setting; each method is a place where it can act."""

    def __init__(self, value: Any, stage: Stage) -> None:
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


def repeated_blocks(models: Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
    """Return the blocks that models repeat, the outermost of each place.

    A block is a module with children, one of two or more of its class in the same ``ModuleList``,
    ``Sequential`` or ``ModuleDict``.
    """
    found: list[torch.nn.Module] = []
    for model in models:
        _look(model, found)
    return found


def _look(module: torch.nn.Module, found: list[torch.nn.Module]) -> None:
    children = list(module.children())
    blocks: list[torch.nn.Module] = []
    if isinstance(module, torch.nn.ModuleList | torch.nn.Sequential | torch.nn.ModuleDict):
        composite = [child for child in children if next(child.children(), None) is not None]
        kinds = [type(child) for child in composite]
        blocks = [child for child in composite if kinds.count(type(child)) > 1]
    found += [block for block in blocks if all(block is not known for known in found)]
    for child in children:
        if all(child is not block for block in blocks):
            _look(child, found)


@contextlib.contextmanager
def wrapped(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace an attribute by what ``make`` makes of it, while it is entered."""
    own = vars(owner).get(name)
    replacement = make(getattr(owner, name))
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def _has_parameters(module: torch.nn.Module) -> bool:
    try:
        return next(module.parameters(), None) is not None
    except Exception:
        # half made
        return False
