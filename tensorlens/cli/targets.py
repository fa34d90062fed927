"""Targets: code that ``-p`` or ``--step`` names, to be profiled though nothing in it says so."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path

import tensorlens
from tensorlens.cli.program import Program, find
from tensorlens.errors import TensorlensError, UsageError

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
