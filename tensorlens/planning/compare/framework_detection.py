"""Guesses a program's framework by its imports; nothing of it is imported or run."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, cast

from tensorlens.errors import UsageError
from tensorlens.frameworks.keras import kinds
from tensorlens.planning.estimate.target import search_path
from tensorlens.planning.trace import Framework
from tensorlens.planning.trials.jobs import OPTIONS, Program
from tensorlens.planning.trials.pickling import names_in

_USUAL = "torch"
_KERAS, _JAX = "keras", "jax"


def framework_of(make_step: Any, program: Program) -> Framework:
    """Return the framework of a program: torch where nothing tells.

    A function is of what it names, or else of what its module imports, or the modules that it
    imports; a program given by its place of what that file imports. Keras stands for its backend.

    Raises:
        UsageError: it is one that cannot be measured, as JAX.
    """
    modules = _imports(program) if isinstance(make_step, str) else _modules(make_step)
    roots = dict.fromkeys(module.partition(".")[0] for module in modules)
    found = [root for root in roots if root in OPTIONS or root in (_KERAS, _JAX)]
    usual = os.environ.get("KERAS_BACKEND", "tensorflow")
    backend = kinds.backend() or usual if _KERAS in found else ""
    known = [each for each in found if each != _JAX]
    name = (known or found or [_USUAL])[0]
    # what else is imported beside Keras may be there for its input alone
    if name == _KERAS or (backend and backend not in OPTIONS):
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
    for name in names_in(code) if isinstance(code, CodeType) else ():
        item = held.get(name, name)
        # a name that is no global may be imported in the function
        yield item if isinstance(item, str) else str(getattr(item, "__module__", ""))
        yield getattr(item, "__name__", "") if isinstance(item, ModuleType) else ""
    modules = [item for item in held.values() if isinstance(item, ModuleType)]
    yield from (item.__name__ for item in modules)
    for item in modules:
        inner = [each for each in vars(item).values() if isinstance(each, ModuleType)]
        yield from (each.__name__ for each in inner)


def _imports(program: Program) -> Iterator[str]:
    tree = _tree(program)
    for node in () if tree is None else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _tree(program: Program) -> ast.Module | None:
    path = _file_of(program)
    try:
        return None if path is None else ast.parse(path.read_bytes())
    except (OSError, ValueError, SyntaxError):
        # whoever runs it will say so
        return None


def _file_of(program: Program) -> Path | None:
    if program.file is not None:
        return Path(program.file)
    names = (program.module or "").split(".")
    places = (Path(folder, *names) for folder in search_path())
    files = (file for place in places for file in (place.with_suffix(".py"), place / "__init__.py"))
    return next((file for file in files if file.is_file()), None)
