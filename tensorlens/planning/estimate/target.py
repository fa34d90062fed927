"""Finds a named program, and its framework by its imports, without running it."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, cast
from unittest import mock

from tensorlens.errors import UsageError
from tensorlens.frameworks.keras import kinds
from tensorlens.planning.trace import Framework
from tensorlens.planning.trials.global_settings import current_settings
from tensorlens.planning.trials.jobs import OPTIONS, Program
from tensorlens.planning.trials.pickling import pack
from tensorlens.user_code import not_run_by_a_call

MakeStep = Callable[..., Any] | str

STEPS = 2
"""Steps of an estimate: optimizers make their state in the first; the second has it throughout."""


def program(
    make_step: MakeStep, arguments: Sequence[str] = (), *, with_data: bool = False
) -> Program:
    """Return the program of a function, ``module:function``, ``file.py:function`` or a script.

    A module without a function runs as by ``python -m``. Tensors that a function refers to are
    sent without their values, unless ``with_data``.
    """
    if isinstance(arguments, str):
        raise UsageError(f"script_args={arguments!r}: give a list of words")
    given = Program("", arguments=tuple(arguments), global_settings=current_settings())
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
            main = _main_source(place)
            if main is None:
                raise UsageError(
                    f'{make_step!r} is no file: give "module:function", "file.py:function" or a'
                    " script"
                )
            return replace(given, name=make_step, module=place, file=str(main.resolve()))
        if _spec(place.partition(".")[0]) is None:
            raise UsageError(f"there is no module {place!r} for {make_step!r}")
        return _with_function(replace(given, name=make_step, module=place), function)
    if not Path(place).is_file():
        raise UsageError(f"there is no file {place}")
    given = replace(given, name=make_step, file=str(Path(place).resolve()))
    return _with_function(given, function) if function else given


_NAMING = ("*", "__getattr__", "exec", "globals", "setattr", "vars")
"""Words of code that may bind any name."""


def _with_function(program: Program, function: str) -> Program:
    """Return a program that calls ``function``; refuse it if its source cannot bind that name."""
    tree = _tree(program)
    if tree is not None:
        # ast.dump() would recurse, and a long sum is a deep tree
        values = (each for node in ast.walk(tree) for _, each in ast.iter_fields(node))
        parts = (part for each in values for part in (each if isinstance(each, list) else [each]))
        text = " ".join(part for part in parts if isinstance(part, str))
        words = re.findall(r"\w+|\*", text)
        if {function.partition(".")[0], *_NAMING}.isdisjoint(words):
            there = [each.name for each in tree.body if isinstance(each, ast.FunctionDef)][:5]
            place = Path(program.file).name if program.file else program.module
            has = f": it has {', '.join(there)}" if there else ", nor any function"
            raise UsageError(f"{program.name}: there is no {function!r} in {place}{has}")
    return replace(program, function=function)


def search_path() -> tuple[str, ...]:
    """Return ``sys.path`` with the current folder, if that exists."""
    try:
        here = str(Path.cwd())
    except FileNotFoundError:
        return tuple(filter(None, sys.path))
    found = [here if each == "" else each for each in sys.path]
    return tuple(found if here in found else [here, *found])


def _spec(module: str) -> ModuleSpec | None:
    """Return a module's spec; imports no package. Import hooks find only the outermost one."""
    first, *parts = module.split(".")
    with mock.patch.object(sys, "path", list(search_path())):
        try:
            spec = importlib.util.find_spec(first)
        except (ImportError, ValueError):
            return None
        for count, _ in enumerate(parts, 2):
            name = ".".join([first, *parts][:count])
            folders = None if spec is None else spec.submodule_search_locations
            spec = None if folders is None else PathFinder.find_spec(name, folders)
    return spec


def framework_of(make_step: Any, program: Program) -> Framework:
    """Return the framework of a program; torch if unknown.

    The names in a function decide, then the imports of its module and of modules imported there;
    for a program given as text, the imports of its file. Keras counts as its backend.
    """
    modules = _imports(program) if isinstance(make_step, str) else _modules(make_step)
    roots = dict.fromkeys(module.partition(".")[0] for module in modules)
    found = [root for root in roots if root in OPTIONS or root in ("keras", "jax")]
    backend = kinds.backend() or _configured_backend() if "keras" in found else ""
    name = next((each for each in found if each != "jax"), "jax" if found else "torch")
    # another framework beside Keras may only make the input
    if name == "keras" or (backend and backend not in OPTIONS):
        name = backend
    if name not in OPTIONS:
        raise UsageError(f"the program computes with {name}: tensorlens runs torch and tensorflow")
    return cast(Framework, name)


def _configured_backend() -> str:
    """Return the backend that Keras will choose (keras/src/backend/config.py)."""
    home = os.environ.get("KERAS_HOME") or Path("~/.keras").expanduser()
    try:
        configured = json.loads(Path(home, "keras.json").read_bytes())["backend"]
    except (OSError, RuntimeError, ValueError, LookupError, TypeError):
        configured = "tensorflow"
    return os.environ.get("KERAS_BACKEND") or str(configured)


def parameters_of(program: Program) -> Sequence[str] | None:
    """Return the parameter names of a program's function, from its source.

    None if it is not defined there, is decorated, or takes any name.
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
    """Yield the modules that a function names, that its module imports, and that those import."""
    function = getattr(function, "func", function)
    held = getattr(function, "__globals__", {})
    code = getattr(function, "__code__", None)
    for name in _names_in(code) if isinstance(code, CodeType) else ():
        item = held.get(name, name)
        # a name that is no global may be imported inside the function
        yield item if isinstance(item, str) else str(getattr(item, "__module__", ""))
        yield getattr(item, "__name__", "") if isinstance(item, ModuleType) else ""
    modules = [item for item in held.values() if isinstance(item, ModuleType)]
    yield from (item.__name__ for item in modules)
    for item in modules:
        inner = [each for each in vars(item).values() if isinstance(each, ModuleType)]
        yield from (each.__name__ for each in inner)


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in code, nested functions included."""
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
    path = Path(program.file) if program.file is not None else _source(program.module or "")
    try:
        return None if path is None else ast.parse(path.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError):
        # a run reports the error
        return None


def _main_source(module: str) -> Path | None:
    """Return the file that ``python -m`` runs; None if there is none."""
    if not all(each.isidentifier() for each in module.split(".")):
        return None
    found = (_source(f"{module}.__main__"), _source(module))
    return next((each for each in found if each and each.name != "__init__.py"), None)


def _source(module: str) -> Path | None:
    """Return a module's file, ``__init__.py`` for a package; None if it has no ``.py`` file."""
    spec = _spec(module)
    file = Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None
    return file if file is not None and file.suffix == ".py" else None
