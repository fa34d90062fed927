"""What a person asks to be run."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.trials.caller import caller
from tensorlens.frameworks.trials.jobs import Program
from tensorlens.frameworks.trials.pickling import carried, pack

MakeStep = Callable[..., Any] | str


def program(make_step: MakeStep, arguments: Sequence[str] = ()) -> Program:
    """Return the program of a function, ``module:function``, ``file.py:function`` or a script.

    Raises:
        UsageError: it is none of these, there is no such file or module, or the function cannot
            go to another process.
    """
    return replace(_program(make_step, arguments), caller=caller())


def _program(make_step: MakeStep, arguments: Sequence[str]) -> Program:
    if not isinstance(make_step, str):
        if not callable(make_step):
            raise UsageError(
                f"make_step is a {type(make_step).__name__}: give a function that builds model, "
                'optimizer and data and returns step(), or "module:function"'
            )
        if isinstance(make_step, kinds.model()):
            raise UsageError(
                "make_step is a Keras model: give the function that makes and compiles it, which"
                " runs in another process"
            )
        if hasattr(make_step, "parameters") or inspect.isgeneratorfunction(make_step):
            what = "a model" if hasattr(make_step, "parameters") else "a generator function"
            raise UsageError(
                f"make_step is {what}: give a function that builds model, optimizer and data and "
                "returns step()"
            )
        return Program(
            _name_of(make_step),
            parcel=pack(make_step),
            arguments=tuple(arguments),
            carried=carried(make_step),
        )
    place, separator, function = make_step.rpartition(":")
    if not separator or place in ("", ".") or "/" in function or "\\" in function:
        place, function = make_step, ""
    if not place.endswith(".py") and not Path(place).is_file():
        if not function:
            raise UsageError(
                f'{make_step!r} is no file: give "module:function", "file.py:function" or a script'
            )
        if not _exists(place):
            raise UsageError(f"there is no module {place!r} for {make_step!r}")
        return Program(make_step, module=place, function=function, arguments=tuple(arguments))
    if not Path(place).is_file():
        raise UsageError(f"there is no file {place}")
    file = str(Path(place).resolve())
    return Program(make_step, file=file, function=function or None, arguments=tuple(arguments))


def packed(make_step: Callable[..., Any], name: str) -> Program:
    """Return the program of a function by another name than its own.

    Raises:
        UsageError: something that it refers to cannot go to another process.
    """
    return Program(name, parcel=pack(make_step), caller=caller())


def search_path() -> tuple[str, ...]:
    """Return where modules are found, in order, with the folder that one is in now."""
    here = str(Path.cwd())
    found = [here if each == "" else each for each in sys.path]
    return tuple(found if here in found else [here, *found])


def _exists(module: str) -> bool:
    before, sys.path = sys.path, list(search_path())
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False
    finally:
        sys.path = before


def _name_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", None) or type(function).__name__
    code = getattr(function, "__code__", None)
    return name if code is None else f"{Path(code.co_filename).name}:{name}"
