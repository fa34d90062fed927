"""Optimizers exchanged for others as they are made."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
from collections.abc import Iterator
from typing import Any

import torch

from tensorlens.frameworks.torch.options.stage import CannotApply, Option, Stage

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
        self._inside = False
        self._kind = _kind(value.get("optimizer"), stage)
        self._extra = {name: value[name] for name in _REFUSED if name in value}

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Make the optimizers that are asked for in the place of others."""
        kind = torch.optim.Optimizer
        exchanged = self._exchanged

        def new(cls: type, *args: Any, **kwargs: Any) -> Any:
            is_copy = not args and not kwargs
            return object.__new__(cls) if self._inside or is_copy else exchanged(cls, args, kwargs)

        kind.__new__ = new
        try:
            yield
        finally:
            # taken away, the class would refuse arguments ever after (object_new of CPython)
            kind.__new__ = _plain
        if not self._made:
            raise CannotApply("make_step() makes no optimizer of torch: there is none to change")

    def _exchanged(self, cls: type, args: Any, kwargs: Any) -> Any:
        kind = self._kind or cls
        given = _given(cls, args, kwargs)
        wanted = _accepted(kind, given, self._extra, same=kind is cls)
        self._inside = True
        try:
            made: Any = object.__new__(kind)
            _initialised(made, given, wanted)
        finally:
            self._inside = False
        self._made += 1
        if isinstance(made, cls):
            _initialised_once(made)
        return made


def _plain(cls: type, *args: Any, **kwargs: Any) -> Any:
    return object.__new__(cls)


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


def _given(cls: type, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the arguments by name."""
    signature = inspect.signature(cls.__init__)  # type: ignore[misc]
    bound = signature.bind(None, *args, **kwargs)
    given = dict(bound.arguments)
    given.pop(next(iter(signature.parameters)), None)
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            given.update(given.pop(parameter.name, {}))
    return given


def _accepted(kind: type, given: dict[str, Any], extra: dict[str, Any], same: bool) -> Any:
    """Return the arguments for the class that is made, without its parameters."""
    takes = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
    for name in extra:
        if name not in takes:
            raise CannotApply(f"{kind.__name__} takes no {name}")
    kept = given if same else {name: given[name] for name in _KEPT if name in given}
    wanted = {name: value for name, value in kept.items() if name in takes and name != "params"}
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


def _initialised_once(made: Any) -> None:
    """Keep Python from calling ``__init__`` once more, with the arguments of the first class."""
    kind = type(made)
    init = kind.__init__

    @functools.wraps(init)
    def skipping(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        if optimizer is made:
            kind.__init__ = init
            return
        init(optimizer, *args, **kwargs)

    kind.__init__ = skipping


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
