"""Optimizers exchanged for others as they are made."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
from collections.abc import Iterator
from typing import Any

import torch

from tensorlens.frameworks.torch.options.stage import CannotApply, Option, Stage
from tensorlens.frameworks.trials.exchanging import accepted, exchanging

_KEPT = ("lr", "betas", "eps", "weight_decay", "momentum")
"""Arguments that the other optimizer is given as well, where it takes them."""
_REFUSED = ("fused", "foreach")


class Optimizers(Option):
    """Every optimizer that the program makes: of the class and with the arguments asked for.

    ``value`` has ``optimizer``, ``fused``, ``foreach``, as many as were given. Parameters and
    groups stay, and so do lr, betas, eps, weight_decay and momentum where the class takes them.
    """

    def __init__(self, value: Any, stage: Stage) -> None:
        super().__init__(value, stage)
        self._made = 0
        self._kind = _kind(value.get("optimizer"), stage)
        self._extra = {name: value[name] for name in _REFUSED if name in value}

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Make the optimizers that are asked for in the place of others."""
        with exchanging(torch.optim.Optimizer, self._exchanged):
            yield
        if not self._made:
            raise CannotApply("make_step() makes no optimizer of torch: there is none to change")

    def _exchanged(self, cls: type, given: dict[str, Any]) -> Any:
        kind = self._kind or cls
        wanted = _accepted(kind, given, self._extra, same=kind is cls)
        made: Any = object.__new__(kind)
        _initialised(made, given, wanted)
        self._made += 1
        return made


def _kind(name: str | None, stage: Stage) -> type | None:
    if name is None:
        return None
    if name != "adam8bit":
        found: type = {
            "sgd": torch.optim.SGD,
            "adam": torch.optim.Adam,
            "adamw": torch.optim.AdamW,
        }[name]
        return found
    if importlib.util.find_spec("bitsandbytes") is None:
        raise CannotApply("adam8bit needs bitsandbytes, which is not installed")
    if stage.estimated:
        raise CannotApply("adam8bit runs kernels of bitsandbytes: it can only be measured")
    import bitsandbytes

    found = bitsandbytes.optim.Adam8bit
    return found


def _accepted(kind: type, given: dict[str, Any], extra: dict[str, Any], same: bool) -> Any:
    """Return the arguments for the class that is made, without its parameters."""
    takes = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
    for name in extra:
        if name not in takes:
            raise CannotApply(f"{kind.__name__} takes no {name}")
    wanted = accepted(kind, given, tuple(given) if same else _KEPT)
    wanted.pop("params", None)
    return {**wanted, **extra}


def _initialised(made: Any, given: dict[str, Any], wanted: dict[str, Any]) -> None:
    params = given.get("params")
    if params is None:
        params = next(iter(given.values()))
    try:
        type(made).__init__(made, params, **wanted)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        refused = next((name for name in _REFUSED if wanted.get(name)), None)
        if refused is None:
            raise
        raise CannotApply(f"{refused}: torch refuses it here: {_one_line(error)}") from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
