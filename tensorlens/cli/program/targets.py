"""Targets of ``-p``: files, modules, packages, functions; resolved without importing anything."""

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
from tensorlens.cli.program.execution import Script, find
from tensorlens.errors import TensorlensError, UsageError
from tensorlens.heap import instances
from tensorlens.user_code import FRAMEWORKS, is_foreign

_INSTALLED = {"site-packages", "dist-packages"}
_OURS = Path(tensorlens.__file__).resolve().parent
_LAYERS = {
    ("torch.nn", "Module"): ("_parameters", "_modules"),
    ("keras", "Layer"): ("_trainable_variables", "_layers"),
}
"""The class of a framework's layers, and the attributes that hold a layer's weights and layers."""


@dataclass(frozen=True, slots=True)
class Target:
    """Code to be profiled although nothing in it says so."""

    typed: str
    """Text that the user gave to ``-p``."""
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


def resolve(typed: str, program: Script) -> Target:
    """Return the target that an argument of ``-p`` names, given the program's ``sys.path``.

    Raises:
        TensorlensError: nothing is found by that name, or it has no Python source.
    """
    if not typed.strip():
        raise UsageError("-p: give a file, folder, module or module.function")
    path = Path(typed)
    if os.sep in typed or typed.endswith(".py"):
        if not path.exists():
            raise TensorlensError(f"-p {typed}: there is no such file")
        return _of_path(typed, path, program)
    if typed.split(".")[0] == "__main__" and program.filename:
        return _checked(typed, Path(program.filename), typed.partition(".")[2])
    parts = typed.split(".")
    for end in range(len(parts), 0, -1):
        spec = find(".".join(parts[:end])) if all(parts[:end]) else None
        if spec is not None:
            return _of_module(typed, spec, ".".join(parts[end:]))
    if path.exists():
        return _of_path(typed, path, program)
    hint = ""
    if program.filename and _defines(_tree(Path(program.filename)), typed):
        hint = f"; for the one in {program.name}: -p __main__.{typed}"
    raise TensorlensError(f"-p {typed}: no file, module or function by that name{hint}")


def _of_path(typed: str, path: Path, program: Script) -> Target:
    is_program = program.filename is not None and path.resolve() == Path(program.filename).resolve()
    if path.is_file() and path.suffix != ".py" and not is_program:
        raise TensorlensError(f"-p {typed}: not a Python source file (.py)")
    return _usable(Target(typed, path.resolve()))


def _of_module(typed: str, spec: ModuleSpec, rest: str) -> Target:
    if spec.loader is not None and spec.submodule_search_locations and not spec.has_location:
        path = Path(next(iter(spec.submodule_search_locations)))  # a namespace package
    elif spec.origin is not None and spec.origin.endswith(".py"):
        path = Path(spec.origin)
    else:
        raise TensorlensError(f"-p {typed}: {spec.name} has no Python source (it is built in)")
    if rest:
        target = _checked(typed, path, rest)
    else:
        is_package = spec.submodule_search_locations is not None and path.name == "__init__.py"
        target = _usable(Target(typed, (path.parent if is_package else path).resolve()))
    if spec.name in sys.modules:
        raise TensorlensError(
            f"-p {typed}: tensorlens itself uses it and has imported it;"
            " profile the function that calls it"
        )
    return target


def _checked(typed: str, path: Path, qualname: str) -> Target:
    """Return the target of a name in a file, which has to define it."""
    if not qualname:
        return _usable(Target(typed, path.resolve()))
    if path.is_dir():
        raise TensorlensError(f"-p {typed}: {path.name} has no module or function {qualname}")
    if not _defines(_tree(path), qualname):
        raise TensorlensError(f"-p {typed}: {path} defines no function or class {qualname}")
    return _usable(Target(typed, path.resolve(), qualname))


def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except (OSError, SyntaxError, ValueError):  # the program will meet it, and say so better
        return ast.Module([], [])


def _defines(tree: ast.Module, qualname: str) -> bool:
    scope: list[ast.AST] = [tree]
    for name in qualname.split("."):
        scope = [node for each in scope for node in _definitions(each) if node.name == name]
    return bool(scope)


def _definitions(
    node: ast.AST,
) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield child
        else:
            yield from _definitions(child)


def _usable(target: Target) -> Target:
    if target.path == _OURS or target.path.is_relative_to(_OURS):
        raise TensorlensError(f"-p {target.typed}: tensorlens cannot profile itself")
    return target


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
            if isinstance(item, type) and issubclass(item, base):
                named[item.__module__] += 1
    for count in (live, named):
        for name, _ in count.most_common():
            if _is_library(name):
                return name
    return None


def _is_library(name: str) -> bool:
    filename = getattr(sys.modules.get(name), "__file__", None)
    return bool(filename) and name.partition(".")[0] not in FRAMEWORKS and is_foreign(str(filename))
