"""``%tlrun`` and ``%%tlrun`` for IPython and Jupyter; ``%mlrun`` for pytorch_memlab's users.

::

    %load_ext tensorlens
    %tlrun -f Net.forward -f step step(model, batch)

    %%tlrun
    y = model(x)
    loss = y.sum()
"""

from __future__ import annotations

import ast
import inspect
import re
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, needs_local_scope
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display

from tensorlens import errors
from tensorlens.errors import TensorlensError
from tensorlens.lines.profiler import LineProfiler
from tensorlens.lines.report import LineReport
from tensorlens.render import renderer_for, save, write_whole

_Method = TypeVar("_Method", bound=Callable[..., Any])
_VALUE = re.compile(r""""([^"]*)"|'([^']*)'|(\S+)""")
_SHOW = "__tensorlens_show__"
_IMPORTS = (ast.Import, ast.ImportFrom)


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext tensorlens``: add the magics."""
    shell.register_magics(TensorlensMagics)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext tensorlens``: take the magics away."""
    for kind in ("line", "cell"):
        for name in ("tlrun", "mlrun"):
            shell.magics_manager.magics[kind].pop(name, None)


def magic(*options: Callable[[Any], Any]) -> Callable[[_Method], _Method]:
    """Return a decorator that makes a method a line and cell magic with these options."""

    def decorate(method: Any) -> Any:
        method = needs_local_scope(line_cell_magic(method))
        for option in reversed(options):
            method = option(method)
        return magic_arguments()(method)

    return decorate


def parsed(magic: Any, line: str) -> tuple[Any, str]:
    """Return the options, and the statement as it was typed."""
    parser = magic.parser
    with_value = {
        flag for action in parser._actions if action.nargs is None for flag in action.option_strings
    }
    options: list[str] = []
    rest = line.strip()
    while rest.startswith("-"):
        word, _, rest = rest.partition(" ")
        rest = rest.lstrip()
        if word == "--":
            break
        options.append(word)
        if word in with_value and (match := _VALUE.match(rest)):
            options.append(match[1] or match[2] or match[3])
            rest = rest[match.end() :].lstrip()
    return parser.parse_args(options), rest


@magics_class
class TensorlensMagics(Magics):  # type: ignore[misc]
    """The magics; IPython prints their help for ``%tlrun?``."""

    @magic(
        argument(
            "-f",
            "--function",
            metavar="FUNC",
            action="append",
            default=[],
            help="A function, method (Net.forward) or module instance (model) to profile; may be"
            " repeated. Without any, %%%%tlrun profiles the lines of its cell.",
        ),
        argument("-r", "--return", dest="give", action="store_true", help="Return the report."),
        argument(
            "-T",
            "--save",
            metavar="FILE",
            help="Write the report to FILE too, replacing it: .json, .html or .csv by its ending,"
            " else text.",
        ),
        argument("-q", "--quiet", action="store_true", help="Do not show the report."),
        argument("statement", nargs="*", help="What to run; in a cell magic, the cell."),
    )
    def tlrun(self, line: str, cell: str | None = None, local_ns: Any = None) -> Any:
        """Run a statement or a cell and show the memory of each line.

        ``%tlrun -f FUNC STATEMENT`` shows the lines of FUNC, ``%%tlrun`` those of its cell.
        """
        __tracebackhide__ = "__ipython_bottom__"
        args, statement = parsed(self.tlrun, line)
        deliver = partial(_deliver, args.function, args.quiet or args.give, args.save)
        _, report = self._run(args.function, None, deliver, statement, cell, local_ns)
        return report if args.give else None

    @magic(
        argument(
            "-f", "--function", metavar="FUNC", action="append", default=[], help="As %%tlrun."
        ),
        argument("-c", "--column", metavar="COLS", action="append", default=[], help="Ignored."),
        argument("-D", "--no_default_columns", action="store_true", help="Ignored."),
        argument("-r", "--return-profiler", action="store_true", help="Return the LineProfiler."),
        argument("-g", "--gpu", metavar="GPU_ID", help="Report only on this GPU."),
        argument("-q", "--quiet", action="store_true", help="Do not show the report."),
        argument("-T", "--dump-profile", metavar="OUTPUT", help="Write the report to a file too."),
        argument("statement", nargs="*", help="What to run; in a cell magic, the cell."),
    )
    def mlrun(self, line: str, cell: str | None = None, local_ns: Any = None) -> Any:
        """Do what %tlrun does, with the options of pytorch_memlab's %mlrun."""
        __tracebackhide__ = "__ipython_bottom__"
        args, statement = parsed(self.mlrun, line)
        quiet = args.quiet or args.return_profiler
        gpu = int(args.gpu) if (args.gpu or "").isdigit() else args.gpu
        deliver = partial(_deliver, args.function, quiet, args.dump_profile)
        devices = None if gpu is None else (gpu,)
        profiler, _ = self._run(args.function, devices, deliver, statement, cell, local_ns)
        return profiler if args.return_profiler else None

    def _run(
        self,
        functions: list[str],
        devices: tuple[Any, ...] | None,
        deliver: Callable[[LineProfiler], LineReport],
        statement: str,
        cell: str | None,
        local_ns: Any,
    ) -> tuple[LineProfiler, LineReport]:
        __tracebackhide__ = True
        if cell is None and not statement:
            raise UsageError("give a statement to run: %tlrun -f FUNC STATEMENT")
        if cell is None and not functions:
            raise UsageError(
                "name what to profile: %tlrun -f FUNC STATEMENT; the lines of a whole cell: %%tlrun"
            )
        namespace = self.shell.user_ns if local_ns is None else local_ns
        try:
            profiler = LineProfiler(devices=devices)
        except TensorlensError as error:
            raise UsageError(str(error)) from None
        source = ProfiledSource(self.shell, profiler, namespace)
        code = source.compile(cell or statement, functions, is_cell=cell is not None)
        try:
            with profiler:
                source.run(code)
        finally:
            profiler.close()
            report = deliver(profiler)
        return profiler, report


def _deliver(
    functions: list[str], quiet: bool, save_as: str | None, profiler: LineProfiler
) -> LineReport:
    report = profiler.result()
    if not functions:
        cell, *others = report.functions
        report = replace(report, functions=(cell, *(each for each in others if each.calls)))
    if not quiet:
        display(report)
    if save_as:
        try:
            print(f"Wrote {_save(report, Path(save_as))}")
        except TensorlensError as error:
            raise UsageError(str(error)) from None
    return report


def _save(report: LineReport, path: Path) -> Path:
    try:
        return save(report, path, overwrite=True)
    except errors.UsageError:  # an ending that says nothing: text, as %mlrun and %lprun write
        try:
            text = str(renderer_for("txt").render(report))
            write_whole(path, text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            raise TensorlensError(f"cannot write {path}: {error.strerror}") from None
        return path


class ProfiledSource:
    """Compiles and runs a cell, or a statement, in a namespace of the shell.

    Args:
        shell: of IPython.
        profiler: is given the functions that are named; without any, the lines of the cell.
        namespace: where the code runs.
    """

    def __init__(self, shell: Any, profiler: LineProfiler, namespace: Any) -> None:
        self._shell = shell
        self._profiler = profiler
        self._namespace = namespace

    def compile(self, source: str, functions: Sequence[str], *, is_cell: bool) -> types.CodeType:
        """Return the code to run, its own lines profiled where no function is named.

        Raises:
            UsageError: of IPython: it is not Python, or there is no such function.
        """
        __tracebackhide__ = True
        transformed = self._shell.transform_cell(source)
        # execution_count is that of the next cell already in some versions of IPython
        number = len(self._shell.history_manager.input_hist_parsed) - 1
        filename = self._shell.compile.cache(transformed, number)
        with _syntax_in_one_line():
            tree = self._shell.compile.ast_parse(transformed, filename)
        if not functions:
            # a framework is counted from its import on, and taken up only between profiled lines
            imports = [*takewhile(lambda each: isinstance(each, _IMPORTS), tree.body)]
            tree.body = tree.body[len(imports) :]
            self._exec(self._shell.compile(ast.Module(imports, []), filename, "exec"))
        if is_cell:
            self._show_the_last(tree)
        with _syntax_in_one_line():
            code: types.CodeType = self._shell.compile(tree, filename, "exec")
        if functions:
            self._add_functions(functions, code)
        else:
            _add_cell(self._profiler, code, transformed.splitlines())
        return code

    def run(self, code: types.CodeType) -> None:
        """Run what was compiled."""
        __tracebackhide__ = True
        try:
            self._exec(self._profiler.exchange(code))
        finally:
            self._namespace.pop(_SHOW, None)

    def _exec(self, code: types.CodeType) -> None:
        __tracebackhide__ = True
        exec(code, self._shell.user_global_ns, self._namespace)

    def _show_the_last(self, tree: ast.Module) -> None:
        """Have the value of a cell's last expression shown, as that of any cell is."""
        if tree.body and isinstance(last := tree.body[-1], ast.Expr):
            self._namespace[_SHOW] = self._shell.displayhook
            show = ast.copy_location(ast.Name(_SHOW, ast.Load()), last.value)
            last.value = ast.copy_location(ast.Call(show, [last.value], []), last.value)

    def _add_functions(self, texts: Sequence[str], code: types.CodeType) -> None:
        """Add what the code itself defines by that name, else what the namespace has."""
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


def _add_cell(profiler: LineProfiler, cell: types.CodeType, lines: list[str]) -> None:
    for code in (cell, *_functions_in(cell)):
        entry = profiler.add_function(_stand_in(code))
        if code is cell:
            entry.name = entry.qualname = "cell"
            entry.first_line, entry.source, entry.source_note = 1, tuple(lines), None


def _stand_in(code: types.CodeType) -> types.FunctionType:
    """Return a function with this code, for the profiler to know it by."""
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
