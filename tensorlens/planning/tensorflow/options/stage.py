"""The program as options of TensorFlow see it: its Keras models and the blocks they repeat."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from tensorlens.frameworks.keras import kinds
from tensorlens.heap import instances
from tensorlens.heap.attributes import content_of, items_of
from tensorlens.planning.trials import stage
from tensorlens.planning.trials.jobs import CannotApply


class Stage(stage.Stage):
    """The program as options see it, and their notes."""

    def models(self) -> list[Any]:
        """Return the Keras layers with layers inside that are in no other one, oldest first.

        Every layer alive is looked at, wherever it is kept; no code of theirs runs.
        """
        found = instances(kinds.layer())
        inside = {id(child) for layer in found for child in children_of(layer)}
        return [layer for layer in found if id(layer) not in inside and children_of(layer)]


class Option(stage.Option[Stage]):
    """One setting."""

    uses = 0
    """How often the program has done what it changes."""

    def used(self) -> None:
        """Count one use."""
        self.uses += 1


def children_of(layer: Any) -> list[Any]:
    """Return the layers that a layer has, without asking it."""
    found = items_of(content_of(layer).get("_layers"))
    return [each for each in found if issubclass(type(each), kinds.layer())]


def repeated_blocks(models: Sequence[Any]) -> list[Any]:
    """Return the blocks that models repeat, the outermost of each place.

    A block is a layer with layers inside, one of two or more of its class in the same model or
    layer.
    """
    return stage.repeated_blocks(models, children_of)


def keras(setting: str) -> Any:
    """Return Keras.

    Raises:
        CannotApply: there is none, or it runs on another framework.
    """
    try:
        found = importlib.import_module("keras")
    except ImportError:
        raise CannotApply(f"{setting} needs Keras 3, which is not installed") from None
    backend = found.config.backend() if hasattr(found, "config") else ""
    if backend != "tensorflow":
        raise CannotApply(f"{setting}: this Keras runs on {backend or 'an old TensorFlow'}")
    return found
