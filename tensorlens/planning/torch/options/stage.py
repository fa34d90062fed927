"""The program as options of torch see it: its models and the blocks that these repeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tensorlens.frameworks.torch.census.names.modules import outermost
from tensorlens.heap import instances
from tensorlens.planning.trials import stage
from tensorlens.planning.trials.jobs import CannotApply


class Stage(stage.Stage):
    """The program as options see it, and their notes."""

    def models(self) -> list[torch.nn.Module]:
        """Return the modules with parameters that are in no other one, in the order they came.

        Every module alive is looked at, wherever it is kept; no code of theirs runs.
        """
        found = outermost(instances(torch.nn.Module))
        return [module for module in found if _has_parameters(module)]

    def device_type(self) -> str:
        """Return the type of the device that the first parameter is on: ``cuda``, ``cpu``."""
        for model in self.models():
            for parameter in model.parameters():
                return str(parameter.device.type)
        raise CannotApply("no model: no nn.Module with parameters is alive after make_step()")


Option = stage.Option[Stage]
"""One setting."""


def repeated_blocks(models: Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
    """Return the blocks that models repeat, the outermost of each place.

    A block is a module with children, one of two or more of its class in the same ``ModuleList``,
    ``Sequential`` or ``ModuleDict``.
    """
    lists = torch.nn.ModuleList | torch.nn.Sequential | torch.nn.ModuleDict
    return stage.repeated_blocks(
        models,
        lambda module: list(module.children()),
        lambda module: isinstance(module, lists),
    )


def cache_configs(models: Sequence[torch.nn.Module]) -> list[Any]:
    """Return the configurations with ``use_cache`` on, as transformers' models have them.

    Each block of such a model fills a cache in its forward, which cannot be filled twice.
    """
    configs = [vars(module).get("config") for model in models for module in model.modules()]
    on = {id(each): each for each in configs if getattr(each, "use_cache", None) is True}
    return list(on.values())


def stepping_classes() -> list[type]:
    """Return the classes of optimizers that have a ``step`` of their own, each once."""
    waiting: list[type] = [torch.optim.Optimizer]
    found: dict[type, None] = {}
    while waiting:
        kind = waiting.pop()
        found[kind] = None
        waiting += kind.__subclasses__()
    return [kind for kind in found if kind is not torch.optim.Optimizer and "step" in vars(kind)]


def _has_parameters(module: torch.nn.Module) -> bool:
    try:
        return next(module.parameters(), None) is not None
    except Exception:
        # half made
        return False
