"""Puts the decorator on every function of chosen files as they are compiled.

``line_profiler.autoprofile`` rewrites the functions. It is applied to each chosen file when that
file is imported, wherever from, rather than to the imports of the script: a function is wrapped
before anyone can take it by ``from module import function``, and nothing else is traced.
"""

from __future__ import annotations

import ast
import builtins
import sys
import types
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from typing import Any, Protocol

from line_profiler.autoprofile.ast_profile_transformer import AstProfileTransformer

from tensorlens.cli.program.execution import plain
from tensorlens.cli.program.targets import Target
from tensorlens.cli.program.top_level import does_work, with_call_after_imports


class TopLevel(Protocol):
    """Measures the lines of a module outside of functions."""

    def adoptable(self, code: types.CodeType) -> types.CodeType:
        """Return what to execute in place of the module's code, to be adopted while it runs."""
        ...

    def adopt(self, frame: types.FrameType) -> None:
        """Measure the lines of a module that runs, from now on."""
        ...


Decorate = Callable[[Any, bool], Any]
"""``decorate(function, named)``; ``named`` tells that the user asked for just this function."""

_NAMED = "__tensorlens_named__"
_AMONG = "__tensorlens_among__"
_TOP_LEVEL = "__tensorlens_top_level__"
_READ_AS_SOURCE = {
    *("jit", "njit", "script", "script_method", "kernel"),
    *("cfunc", "vectorize", "guvectorize", "stencil"),
}
"""Decorators (numba, triton, TorchScript) that read the function's code and never run it."""
_STUBS = {"overload"}


class Instrument(MetaPathFinder):
    """Compiles the files of its targets with every chosen function decorated."""

    def __init__(
        self, targets: Sequence[Target], decorate: Decorate, top_level: TopLevel | None = None
    ) -> None:
        self.targets = targets
        self._top_level = top_level
        self.seen: set[str] = set()
        """The files compiled so far."""
        self._decorate = decorate

    def install(self) -> None:
        """Take part in every import from now on."""
        # in builtins, so that no module gains a name
        vars(builtins)[_NAMED] = lambda function: self._decorate(function, True)
        vars(builtins)[_AMONG] = lambda function: self._decorate(function, False)
        vars(builtins)[_TOP_LEVEL] = self._adopt_caller
        sys.meta_path.insert(0, self)

    def _adopt_caller(self) -> None:
        if self._top_level is not None:
            self._top_level.adopt(sys._getframe(1))

    def compile_program(self, source: bytes, filename: str) -> types.CodeType:
        """Compile the file that the program begins with; its top-level lines are measured too."""
        return self.compile(source, filename, begins=True)

    def compile(self, source: bytes, filename: str, *, begins: bool = False) -> types.CodeType:
        """Compile a file, decorated where a target says so."""
        chosen = [target for target in self.targets if target.covers(filename)]
        if not chosen:
            return plain(source, filename)
        self.seen.add(filename)
        tree = compile(source, filename, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
        assert isinstance(tree, ast.Module)
        names = [target.qualname for target in chosen]
        is_measured = begins and None in names and does_work(tree)
        tree = ast.fix_missing_locations(_Decorating(names).visit(tree))
        if is_measured:
            tree = with_call_after_imports(tree, _TOP_LEVEL)
        code: types.CodeType = compile(tree, filename, "exec", dont_inherit=True)
        if is_measured and self._top_level is not None:
            return self._top_level.adoptable(code)
        return code

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return what the other finders find, to be loaded by us where a target says so."""
        for finder in sys.meta_path:
            if isinstance(finder, Instrument):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is None:
                continue
            if type(spec.loader) is SourceFileLoader and spec.origin:
                if any(each.covers(spec.origin) for each in self.targets):
                    spec.loader = _Loader(self, fullname, spec.origin)
            return spec
        return None


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
        super().__init__(profiler_name=_AMONG)
        self._everything = None in qualnames
        self._named = {name for name in qualnames if name is not None}
        self._scope: list[str] = []

    def _visit_func_def(self, node: Any) -> Any:
        self._scope.append(node.name)
        words = {word for decorator in node.decorator_list for word in _words(decorator)}
        if self._is_chosen() and not words & (_READ_AS_SOURCE | _STUBS):
            named = ".".join(self._scope) in self._named
            self._profiler_name = _NAMED if named else _AMONG
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

    def _is_chosen(self) -> bool:
        prefixes = (".".join(self._scope[:end]) for end in range(1, len(self._scope) + 1))
        return self._everything or any(prefix in self._named for prefix in prefixes)


def _words(decorator: ast.expr) -> set[str]:
    """Return the last name of ``a.b.name`` and of ``a.b.name(...)``."""
    if isinstance(decorator, ast.Call):
        decorator = decorator.func
    if isinstance(decorator, ast.Attribute):
        return {decorator.attr}
    return {decorator.id} if isinstance(decorator, ast.Name) else set()
