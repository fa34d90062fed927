"""Decorate the functions of chosen files when these are compiled.

The code of a chosen file is changed when it is imported, from wherever: a function is wrapped
before ``from module import function`` can take it, and nothing else is traced.

The top-level lines of the program itself are measured too, where they do its work. A framework's
memory is counted from its import on, so they are measured from the first import that brought one.
"""

from __future__ import annotations

import ast
import builtins
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from typing import Any

from tensorlens.cli.programs.program import plain_code
from tensorlens.cli.programs.targets import DEFINITIONS, Target
from tensorlens.frameworks.registry import module_spec
from tensorlens.lines.profile import DecoratorProfiler

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


class _Decorating(ast.NodeTransformer):
    """Adds the innermost decorator to the functions that are named, or to all."""

    def __init__(self, qualnames: Sequence[str | None]) -> None:
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
            decorator = _NAMED_DECORATOR if named else _UNNAMED_DECORATOR
            node.decorator_list.append(ast.Name(decorator, ast.Load()))
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
    own = {node.name for node in ast.walk(tree) if isinstance(node, DEFINITIONS)}
    return any(
        isinstance(node, _COMPOUND_STATEMENTS)
        or (isinstance(node, ast.Call) and not _last_names(node) & (own | _EXITS))
        for node in _outside_definitions(tree)
    )


def _outside_definitions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, DEFINITIONS):
            yield child
            yield from _outside_definitions(child)


def _with_calls_after_imports(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Add a call that begins to measure after each run of imports outside of definitions."""
    changed: list[ast.stmt] = []
    for at, statement in enumerate(body):
        if not isinstance(statement, DEFINITIONS):
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
