"""Puts the decorator on every function of chosen files as they are compiled.

``line_profiler.autoprofile`` rewrites the functions. It is applied to each chosen file when that
file is imported, wherever from, rather than to the imports of the script: a function is wrapped
before anyone can take it by ``from module import function``, and nothing else is traced.

The top-level lines of the program itself are measured too, where they do its work. A framework's
memory is counted from its import on, so they are measured from the first import that brought one.
"""

from __future__ import annotations

import ast
import builtins
import os
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any

from line_profiler.autoprofile.ast_profile_transformer import AstProfileTransformer

import tensorlens
from tensorlens.cli.program import Program, find, plain_code
from tensorlens.errors import TensorlensError, UsageError
from tensorlens.heap import instances
from tensorlens.interpreter import module_spec
from tensorlens.lines.profile import DecoratorProfiler
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
        if isinstance(child, _DEFINITIONS):
            yield child
        else:
            yield from _definitions(child)


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


Decorate = Callable[[Any, bool], Any]
"""``decorate(function, named)``; ``named`` tells that the user asked for just this function."""

_NAMED_DECORATOR = "__tensorlens_named__"
_UNNAMED_DECORATOR = "__tensorlens_among__"
_TOP_LEVEL = "__tensorlens_top_level__"
_CODE_READERS = {
    *("jit", "njit", "script", "script_method", "kernel"),
    *("cfunc", "vectorize", "guvectorize", "stencil", "overload"),
}
"""Decorators (numba, triton, TorchScript) that read the function's code and never run it."""

_IMPORTS = (ast.Import, ast.ImportFrom)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_COMPOUND_STATEMENTS = (ast.For, ast.While, ast.With)
_EXITS = {"exit", "SystemExit"}


class Instrument(MetaPathFinder):
    """Compiles the files of its targets with every chosen function decorated.

    ``top_level`` measures the lines of the program outside of functions.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        decorate: Decorate,
        top_level: DecoratorProfiler | None = None,
    ) -> None:
        self.targets = targets
        self._top_level = top_level
        self.seen: set[str] = set()
        """The files compiled so far."""
        self._decorate = decorate

    def install(self) -> None:
        """Take part in every import from now on."""
        # in builtins, so that no module gains a name
        vars(builtins)[_NAMED_DECORATOR] = lambda function: self._decorate(function, True)
        vars(builtins)[_UNNAMED_DECORATOR] = lambda function: self._decorate(function, False)
        if (profiler := self._top_level) is not None:
            vars(builtins)[_TOP_LEVEL] = lambda: profiler.adopt(sys._getframe(1))
        sys.meta_path.insert(0, self)

    def compile_program(self, source: bytes, filename: str) -> types.CodeType:
        """Compile the file that the program begins with; its top-level lines are measured too."""
        return self.compile(source, filename, self._top_level)

    def compile(
        self, source: bytes, filename: str, top_level: DecoratorProfiler | None = None
    ) -> types.CodeType:
        """Compile a file, decorated where a target says so."""
        chosen = [target for target in self.targets if target.covers(filename)]
        if not chosen:
            return plain_code(source, filename)
        self.seen.add(filename)
        tree = compile(source, filename, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
        assert isinstance(tree, ast.Module)
        names = [target.qualname for target in chosen]
        if None not in names or not does_work(tree):
            top_level = None
        tree = ast.fix_missing_locations(_Decorating(names).visit(tree))
        if top_level is not None:
            tree.body = _with_calls_after_imports(tree.body)
        code: types.CodeType = compile(tree, filename, "exec", dont_inherit=True)
        return code if top_level is None else top_level.adoptable(code)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return what the finders behind this one find, loaded by us where a target says so."""
        finders = [*sys.meta_path]
        behind = finders[finders.index(self) + 1 :] if self in finders else []
        spec = module_spec(behind, fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader and spec.origin:
            if any(each.covers(spec.origin) for each in self.targets):
                spec.loader = _Loader(self, fullname, spec.origin)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, instrument: Instrument, fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self._instrument = instrument

    def get_code(self, fullname: str) -> types.CodeType:
        # the cached bytecode is neither read nor written: it is that of the plain source
        return self._instrument.compile(self.get_data(self.path), self.path)


class _Decorating(AstProfileTransformer):  # type: ignore[misc]
    """Adds the innermost decorator to the functions that are named, or to all."""

    def __init__(self, qualnames: Sequence[str | None]) -> None:
        super().__init__(profiler_name=_UNNAMED_DECORATOR)
        self._everything = None in qualnames
        self._named = {name for name in qualnames if name is not None}
        self._scope: list[str] = []

    def _visit_func_def(self, node: Any) -> Any:
        self._scope.append(node.name)
        words = {word for decorator in node.decorator_list for word in _last_names(decorator)}
        prefixes = (".".join(self._scope[:end]) for end in range(1, len(self._scope) + 1))
        is_chosen = self._everything or any(prefix in self._named for prefix in prefixes)
        if is_chosen and not words & _CODE_READERS:
            named = ".".join(self._scope) in self._named
            self._profiler_name = _NAMED_DECORATOR if named else _UNNAMED_DECORATOR
            node = super()._visit_func_def(node)
        else:
            self.generic_visit(node)
        self._scope.pop()
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = _visit_func_def

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self._scope.append(node.name)
        self.generic_visit(node)
        self._scope.pop()
        return node


def _last_names(expression: ast.expr) -> set[str]:
    """Return the last name of ``a.b.name`` and of ``a.b.name(...)``."""
    if isinstance(expression, ast.Call):
        expression = expression.func
    if isinstance(expression, ast.Attribute):
        return {expression.attr}
    return {expression.id} if isinstance(expression, ast.Name) else set()


def does_work(tree: ast.Module) -> bool:
    """Tell whether a file does more than define, import and call a function of its own."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, _DEFINITIONS)}
    return any(
        isinstance(node, _COMPOUND_STATEMENTS)
        or (isinstance(node, ast.Call) and not _last_names(node) & (own | _EXITS))
        for node in _outside_definitions(tree)
    )


def _outside_definitions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _DEFINITIONS):
            yield child
            yield from _outside_definitions(child)


def _with_calls_after_imports(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Begin to measure after each run of imports outside of functions and classes."""
    changed: list[ast.stmt] = []
    for at, statement in enumerate(body):
        if not isinstance(statement, _DEFINITIONS):
            for block in _statement_blocks(statement):
                block[:] = _with_calls_after_imports(block)
        changed.append(statement)
        following = body[at + 1] if at + 1 < len(body) else None
        from_future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if isinstance(statement, _IMPORTS) and not from_future:
            if not isinstance(following, _IMPORTS):
                call = ast.Expr(ast.Call(ast.Name(_TOP_LEVEL, ast.Load()), [], []))
                for node in ast.walk(call):
                    # no line of its own
                    ast.copy_location(node, statement)
                changed.append(call)
    return changed


def _statement_blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    fields = ("body", "orelse", "finalbody")
    blocks = [block for field in fields if (block := getattr(statement, field, None))]
    return blocks + [handler.body for handler in getattr(statement, "handlers", ())]
