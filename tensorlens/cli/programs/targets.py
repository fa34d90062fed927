"""Targets: code that ``-p`` or ``--step`` names, and the library code that ``-p`` could name."""

from __future__ import annotations

import ast
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path

import tensorlens
from tensorlens.cli.programs.program import Program, find
from tensorlens.errors import TensorlensError, UsageError
from tensorlens.heap import instances
from tensorlens.heap.attributes import is_subtype
from tensorlens.user_code import FRAMEWORKS, is_foreign

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_INSTALLED = {"site-packages", "dist-packages"}
_OURS = Path(tensorlens.__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Target:
    """A file, a folder, or a function, method or class in a file."""

    typed: str
    """Text that the user gave to ``-p`` or ``--step``."""
    path: Path
    """A source file, or a folder that stands for all source files below it."""
    qualname: str | None = None
    """A function, method or class in the file; None for all of it."""

    def covers(self, filename: str | os.PathLike[str]) -> bool:
        """Return whether the file holds code of the target."""
        path = Path(filename).resolve()
        if path == self.path:
            return True
        if not path.is_relative_to(self.path) or path.is_relative_to(_OURS):
            return False
        # a virtual environment below a project's folder is not the project
        return _INSTALLED.isdisjoint(path.relative_to(self.path).parts)


def resolve(typed: str, program: Program, option: str = "-p") -> Target:
    """Return the target that an argument of ``option`` names, given the program's ``sys.path``.

    Raises:
        TensorlensError: nothing is found by that name, or it has no Python source.
    """
    if not typed.strip():
        raise UsageError(f"{option}: give a file, folder, module or module.function")
    try:
        target = _found(typed, program, option)
        if target.path == _OURS or target.path.is_relative_to(_OURS):
            raise TensorlensError("tensorlens cannot profile itself")
    except TensorlensError as error:
        raise TensorlensError(f"{option} {typed}: {error}") from None
    return target


def _found(typed: str, program: Program, option: str) -> Target:
    path = Path(typed)
    if os.sep in typed or typed.endswith(".py"):
        if not path.exists():
            raise TensorlensError("there is no such file")
        return _of_path(typed, path, program)
    if typed.split(".")[0] == "__main__" and program.filename:
        return _of_name(typed, Path(program.filename), typed.partition(".")[2])
    parts = typed.split(".")
    for end in range(len(parts), 0, -1):
        spec = find(".".join(parts[:end])) if all(parts[:end]) else None
        if spec is not None:
            return _of_module(typed, spec, ".".join(parts[end:]))
    if path.exists():
        return _of_path(typed, path, program)
    hint = ""
    if program.filename and _defines(Path(program.filename), typed):
        hint = f"; for the one in {program.name}: {option} __main__.{typed}"
    raise TensorlensError(f"no file, module or function by that name{hint}")


def _of_path(typed: str, path: Path, program: Program) -> Target:
    is_program = program.filename is not None and path.resolve() == Path(program.filename).resolve()
    if path.is_file() and path.suffix != ".py" and not is_program:
        raise TensorlensError("not a Python source file (.py)")
    return Target(typed, path.resolve())


def _of_module(typed: str, spec: ModuleSpec, rest: str) -> Target:
    if spec.loader is None and spec.submodule_search_locations:
        path = Path(next(iter(spec.submodule_search_locations)))  # a folder without __init__.py
    elif spec.origin is not None and spec.origin.endswith(".py"):
        path = Path(spec.origin)
    else:
        raise TensorlensError(f"{spec.name} has no Python source (it is built in)")
    is_package = spec.submodule_search_locations is not None and path.name == "__init__.py"
    target = _of_name(typed, path.parent if is_package and not rest else path, rest)
    if spec.loader and spec.name in sys.modules and not target.path.is_relative_to(_OURS):
        raise TensorlensError(
            "tensorlens itself uses it and has imported it; profile the function that calls it"
        )
    return target


def _of_name(typed: str, path: Path, qualname: str) -> Target:
    """Return the target of a name in a file, which has to define it; without one all of it."""
    if qualname and path.is_dir():
        raise TensorlensError(f"{path.name} has no module or function {qualname}")
    if qualname and not _defines(path, qualname):
        raise TensorlensError(f"{path} defines no function or class {qualname}")
    return Target(typed, path.resolve(), qualname or None)


def _defines(path: Path, qualname: str) -> bool:
    try:
        scope: list[ast.AST] = [ast.parse(path.read_bytes(), str(path))]
    except (OSError, SyntaxError, ValueError):  # the program will meet it, and say so better
        return False
    for name in qualname.split("."):
        scope = [node for each in scope for node in _definitions(each) if node.name == name]
    return bool(scope)


def _definitions(
    node: ast.AST,
) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, DEFINITIONS):
            yield child
        else:
            yield from _definitions(child)


_LAYERS = {
    ("torch.nn", "Module"): ("_parameters", "_modules"),
    ("keras", "Layer"): ("_trainable_variables", "_layers"),
}
"""The class of a framework's layers, and the attributes that hold a layer's weights and layers."""


def library_model_module() -> str | None:
    """Return the library module that most layers of the program are defined in, or None.

    Counted are live layers that hold weights or layers; where none is left, the model classes
    that the program's main module has imported. The frameworks' own layers do not count, nor do the
    program's: for a model of transformers it is ``transformers.models.bert.modeling_bert``.
    """
    live: Counter[str] = Counter()
    named: Counter[str] = Counter()
    for (module, name), contents in _LAYERS.items():
        base = getattr(sys.modules.get(module), name, None)
        if not isinstance(base, type):
            continue
        for layer in instances(base):
            if any(getattr(layer, "__dict__", {}).get(each) for each in contents):
                live[type(layer).__module__] += 1
        for item in list(vars(sys.modules["__main__"]).values()):
            if is_subtype(type(item), type) and issubclass(item, base):
                named[item.__module__] += 1
    for count in (live, named):
        for name, _ in count.most_common():
            if _is_library(name):
                return name
    return None


def _is_library(name: str) -> bool:
    filename = getattr(sys.modules.get(name), "__file__", None)
    return bool(filename) and name.partition(".")[0] not in FRAMEWORKS and is_foreign(str(filename))
