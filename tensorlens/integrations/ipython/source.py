"""The code of an IPython cell or statement, with its profiled lines."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

from IPython.core.error import UsageError

from tensorlens.errors import TensorlensError
from tensorlens.lines.profiler import LineProfiler

_SHOW = "__tensorlens_show__"
_IMPORTS = (ast.Import, ast.ImportFrom)


class ProfiledSource:
    """Compiles and runs a cell, or a statement, in a namespace of the shell.

    Args:
        shell: IPython's shell.
        profiler: profiles the named functions; without any, the lines of the cell.
        namespace: namespace in which the code runs.
    """

    def __init__(self, shell: Any, profiler: LineProfiler, namespace: Any) -> None:
        self._shell = shell
        self._profiler = profiler
        self._namespace = namespace

    def compile(self, source: str, functions: Sequence[str], *, is_cell: bool) -> types.CodeType:
        """Return the code to run: without a named function its own lines are profiled.

        Imports of such code run first.

        Raises:
            UsageError: (IPython's) a syntax error, or an unknown function.
        """
        __tracebackhide__ = True
        transformed = self._shell.transform_cell(source)
        # in some versions execution_count is already that of the next cell
        number = len(self._shell.history_manager.input_hist_parsed) - 1
        filename = self._shell.compile.cache(transformed, number)
        with _syntax_in_one_line():
            tree = self._shell.compile.ast_parse(transformed, filename)
        if not functions:
            # a framework is counted only if it is imported before the profiled lines begin
            imports = [*takewhile(lambda each: isinstance(each, _IMPORTS), tree.body)]
            tree.body = tree.body[len(imports) :]
            self._exec(self._shell.compile(ast.Module(imports, []), filename, "exec"))
        if is_cell:
            _show_the_last(tree)
        with _syntax_in_one_line():
            code: types.CodeType = self._shell.compile(tree, filename, "exec")
        if functions:
            self._add_functions(functions, code)
        else:
            _add_cell(self._profiler, code, transformed.splitlines())
        return code

    def run(self, code: types.CodeType) -> None:
        """Run the compiled code."""
        __tracebackhide__ = True
        if _SHOW in code.co_names:
            self._namespace[_SHOW] = self._shell.displayhook
        try:
            self._exec(self._profiler.exchange(code))
        finally:
            self._namespace.pop(_SHOW, None)

    def _exec(self, code: types.CodeType) -> None:
        __tracebackhide__ = True
        exec(code, self._shell.user_global_ns, self._namespace)

    def _add_functions(self, texts: Sequence[str], code: types.CodeType) -> None:
        """Add functions defined by the code itself, else those of the namespace."""
        defined = {each.co_qualname: each for each in _functions_in(code)}
        for text in texts:
            if text in defined:
                self._profiler.add_function(_stand_in(defined[text]))
                continue
            try:
                found = eval(text, self._shell.user_global_ns, self._namespace)
                self._profiler.add_function(found)
            except Exception as error:
                reason = str(error)
                if not isinstance(error, TensorlensError):
                    reason = f"-f {text}: {type(error).__name__}: {error}"
                raise UsageError(reason) from None


def _show_the_last(tree: ast.Module) -> None:
    """Have the value of the cell's last expression shown, as IPython does."""
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        show = ast.copy_location(ast.Name(_SHOW, ast.Load()), last.value)
        last.value = ast.copy_location(ast.Call(show, [last.value], []), last.value)


def _add_cell(profiler: LineProfiler, cell: types.CodeType, lines: list[str]) -> None:
    for code in (cell, *_functions_in(cell)):
        entry = profiler.add_function(_stand_in(code))
        if code is cell:
            entry.show_as("cell", lines)


def _stand_in(code: types.CodeType) -> types.FunctionType:
    """Return a function with this code, to be added to the profiler."""
    closure = tuple(types.CellType() for _ in code.co_freevars)
    return types.FunctionType(code, {"__name__": "__main__"}, None, None, closure)


def _functions_in(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            is_class = not constant.co_flags & inspect.CO_OPTIMIZED
            if not is_class and not constant.co_name.startswith("<"):
                yield constant
            yield from _functions_in(constant)


@contextmanager
def _syntax_in_one_line() -> Iterator[None]:
    try:
        yield
    except SyntaxError as error:
        hint = ": put it in a function and give -f" if "await" in error.msg else ""
        where = f"line {error.lineno}: {(error.text or '').strip()}"
        raise UsageError(f"SyntaxError: {error.msg}{hint} ({where})") from None
