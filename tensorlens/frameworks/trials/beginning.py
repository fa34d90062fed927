"""How a program begins: its function is imported or unpacked and called, or its script is run."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.trials.caller import adopt
from tensorlens.frameworks.trials.jobs import Job, Program
from tensorlens.frameworks.trials.pickling import unpack


def beginning(job: Job) -> Any:
    """Import or unpack a program and begin it: call its function, or run the script.

    A function that takes no batch may return a Keras model: the batch is then its train step's.

    Args:
        job: what is run.

    Raises:
        UsageError: there is no such module or function, or it takes no batch.
    """
    program, options = job.program, job.choice.arguments
    batch, keyword = job.batch, job.batch_argument
    sys.argv = [program.file or program.name, *program.arguments]
    if program.function is None and program.parcel is None:
        return _run_script(program)
    function = _function(program)
    if batch is None:
        return function(**options)
    positional = () if keyword else (batch,)
    named = {**options, keyword: batch} if keyword else options
    if _takes(function, *positional, **named) or not _takes(function, **options):
        return function(*positional, **named)
    made = function(**options)
    if not isinstance(made, kinds.model()):
        raise UsageError(
            f"{program.name} takes no {keyword or 'batch'}: give it that argument, or let it"
            " return a compiled Keras model"
        )
    return made


def _takes(function: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Tell whether a function can be called with these arguments."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:
        # nothing is known of its arguments
        return True
    return True


def _function(program: Program) -> Callable[..., Any]:
    if program.parcel is not None:
        unpacked = unpack(program.parcel)
        adopt(getattr(unpacked, "__globals__", {}))
        return unpacked
    module = _module(program)
    found: Any = module
    assert program.function is not None
    for name in program.function.split("."):
        if not hasattr(found, name):
            raise UsageError(f"{program.name}: there is no {name!r} in it")
        found = getattr(found, name)
    if not callable(found):
        raise UsageError(f"{program.name} is no function")
    function: Callable[..., Any] = found
    return function


def _module(program: Program) -> ModuleType:
    if program.file is None:
        assert program.module is not None
        try:
            return importlib.import_module(program.module)
        except ModuleNotFoundError as error:
            if error.name is not None and program.module.startswith(error.name):
                raise UsageError(f"{program.name}: there is no module {error.name!r}") from None
            raise
    folder = str(Path(program.file).resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = Path(program.file).stem
    specification = importlib.util.spec_from_file_location(name, program.file)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


def _run_script(program: Program) -> None:
    assert program.file is not None
    sys.path.insert(0, str(Path(program.file).resolve().parent))
    runpy.run_path(program.file, run_name="__main__")
