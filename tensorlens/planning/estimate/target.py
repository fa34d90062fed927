"""The program that a person names, and whose framework it is by its imports; nothing of it runs."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, cast
from unittest import mock

from tensorlens.errors import UsageError
from tensorlens.frameworks.keras import kinds
from tensorlens.planning.trace import Framework
from tensorlens.planning.trials.global_settings import settings
from tensorlens.planning.trials.jobs import OPTIONS, Program
from tensorlens.planning.trials.pickling import pack
from tensorlens.planning.trials.step_runner import not_run_by_a_call

MakeStep = Callable[..., Any] | str

STEPS = 2
"""Optimizers make their state in the first step; the second has all of it from its beginning."""


def program(
    make_step: MakeStep, arguments: Sequence[str] = (), *, with_data: bool = False
) -> Program:
    """Return the program of a function, ``module:function``, ``file.py:function`` or a script.

    Tensors that a function refers to go with their values only ``with_data``.
    """
    if isinstance(arguments, str):
        raise UsageError(f"script_args={arguments!r}: give a list of words")
    given = Program("", arguments=tuple(arguments), global_settings=settings())
    if not isinstance(make_step, str):
        if not callable(make_step):
            raise UsageError(
                f"make_step is a {type(make_step).__name__}: give a function that builds model, "
                'optimizer and data and returns step(), or "module:function"'
            )
        is_model = isinstance(make_step, kinds.model()) or hasattr(make_step, "parameters")
        kind = not_run_by_a_call(make_step)
        if is_model or kind:
            what = "a model" if is_model else f"a {kind}"
            raise UsageError(
                f"make_step is {what}: give a function that builds model, optimizer and data and "
                "returns step()"
            )
        code = getattr(make_step, "__code__", None)
        name = getattr(make_step, "__qualname__", None) or type(make_step).__name__
        name = name if code is None else f"{Path(code.co_filename).name}:{name}"
        return replace(given, name=name, parcel=pack(make_step, with_data=with_data))
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
        return replace(given, name=make_step, module=place, function=function)
    if not Path(place).is_file():
        raise UsageError(f"there is no file {place}")
    file = str(Path(place).resolve())
    return replace(given, name=make_step, file=file, function=function or None)


def search_path() -> tuple[str, ...]:
    """Return where modules are found, in order, with the folder that one is in now, if it is."""
    try:
        here = str(Path.cwd())
    except FileNotFoundError:
        return tuple(filter(None, sys.path))
    found = [here if each == "" else each for each in sys.path]
    return tuple(found if here in found else [here, *found])


def _exists(module: str) -> bool:
    with mock.patch.object(sys, "path", list(search_path())):
        try:
            return importlib.util.find_spec(module.partition(".")[0]) is not None
        except (ImportError, ValueError):
            return False


def framework_of(make_step: Any, program: Program) -> Framework:
    """Return the framework of a program: torch where nothing tells.

    A function is of what it names, or else of what its module imports, or the modules that it
    imports; a program given by its place of what that file imports. Keras stands for its backend.
    """
    modules = _imports(program) if isinstance(make_step, str) else _modules(make_step)
    roots = dict.fromkeys(module.partition(".")[0] for module in modules)
    found = [root for root in roots if root in OPTIONS or root in ("keras", "jax")]
    usual = os.environ.get("KERAS_BACKEND", "tensorflow")
    backend = kinds.backend() or usual if "keras" in found else ""
    name = next((each for each in found if each != "jax"), "jax" if found else "torch")
    # what else is imported beside Keras may be there for its input alone
    if name == "keras" or (backend and backend not in OPTIONS):
        name = backend
    if name not in OPTIONS:
        raise UsageError(f"the program computes with {name}: tensorlens runs torch and tensorflow")
    return cast(Framework, name)


def parameters_of(program: Program) -> Sequence[str] | None:
    """Return the names that a program's function takes, read from its source.

    None where the function is not defined there, or takes any name.
    """
    tree = _tree(program)
    for node in () if tree is None else tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == program.function:
            given = node.args
            if given.kwarg is not None or node.decorator_list:
                return None
            return [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return None


def _modules(function: Any) -> Iterator[str]:
    """Give the modules that a function names, those of its module, and what these import."""
    function = getattr(function, "func", function)
    held = getattr(function, "__globals__", {})
    code = getattr(function, "__code__", None)
    for name in _names_in(code) if isinstance(code, CodeType) else ():
        item = held.get(name, name)
        # a name that is no global may be imported in the function
        yield item if isinstance(item, str) else str(getattr(item, "__module__", ""))
        yield getattr(item, "__name__", "") if isinstance(item, ModuleType) else ""
    modules = [item for item in held.values() if isinstance(item, ModuleType)]
    yield from (item.__name__ for item in modules)
    for item in modules:
        inner = [each for each in vars(item).values() if isinstance(each, ModuleType)]
        yield from (each.__name__ for each in inner)


def _names_in(code: CodeType) -> Iterator[str]:
    """Give the globals and attributes that code names, that of functions in it too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _imports(program: Program) -> Iterator[str]:
    tree = _tree(program)
    for node in () if tree is None else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _tree(program: Program) -> ast.Module | None:
    if program.file is not None:
        path: Path | None = Path(program.file)
    else:
        names = (program.module or "").split(".")
        places = (Path(folder, *names) for folder in search_path())
        files = (each for at in places for each in (at.with_suffix(".py"), at / "__init__.py"))
        path = next((file for file in files if file.is_file()), None)
    try:
        return None if path is None else ast.parse(path.read_bytes())
    except (OSError, ValueError, SyntaxError):
        # whoever runs it will say so
        return None
