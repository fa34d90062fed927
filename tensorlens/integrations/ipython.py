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
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, needs_local_scope
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display

from tensorlens.errors import TensorlensError
from tensorlens.lines.profiler import LineProfiler
from tensorlens.records.lines import LineReport
from tensorlens.render import save

_SHOW = "__tensorlens_show__"


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext tensorlens``: add the magics, and show reports as text in a terminal."""
    shell.register_magics(TensorlensMagics)
    plain = shell.display_formatter.formatters["text/plain"]
    plain.for_type(LineReport, lambda report, printer, cycle: printer.text(str(report)))


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext tensorlens``: take the magics away."""
    for kind in ("line", "cell"):
        for name in ("tlrun", "mlrun"):
            shell.magics_manager.magics[kind].pop(name, None)
    shell.display_formatter.formatters["text/plain"].pop(LineReport, None)


@dataclass(frozen=True, slots=True)
class _Wishes:
    functions: list[str]
    save_as: str | None
    quiet: bool
    devices: tuple[str, ...] | None = None


@magics_class
class TensorlensMagics(Magics):  # type: ignore[misc]
    """The magics; IPython prints their help for ``%tlrun?``."""

    @magic_arguments()
    @argument(
        "-f",
        "--function",
        metavar="FUNC",
        action="append",
        default=[],
        help="A function, method (Net.forward) or module instance (model) to profile; may be"
        " repeated. Without any, %%%%tlrun profiles the lines of its cell.",
    )
    @argument("-r", "--return", dest="give", action="store_true", help="Return the report.")
    @argument(
        "-T",
        "--save",
        metavar="FILE",
        help="Write the report to FILE too, replacing it: .json, .html or .csv by its ending,"
        " else text.",
    )
    @argument("-q", "--quiet", action="store_true", help="Do not show the report.")
    @argument("statement", nargs="*", help="What to run; in a cell magic, the cell.")
    @needs_local_scope
    @line_cell_magic
    def tlrun(self, line: str, cell: str | None = None, local_ns: Any = None) -> Any:
        """Run a statement or a cell and show the memory of each line.

        ``%tlrun -f FUNC STATEMENT`` shows the lines of FUNC, ``%%tlrun`` those of its cell.
        """
        __tracebackhide__ = "__ipython_bottom__"
        args, statement = _parsed(self.tlrun, line)
        wishes = _Wishes(args.function, args.save, args.quiet or args.give)
        profiler = self._run(wishes, statement, cell, local_ns)
        return profiler.result() if args.give else None

    @magic_arguments()
    @argument("-f", "--function", metavar="FUNC", action="append", default=[], help="As %%tlrun.")
    @argument("-c", "--column", metavar="COLS", action="append", default=[], help="Ignored.")
    @argument("-D", "--no_default_columns", action="store_true", help="Ignored.")
    @argument("-r", "--return-profiler", action="store_true", help="Return the LineProfiler.")
    @argument("-g", "--gpu", metavar="GPU_ID", help="Report only on this GPU.")
    @argument("-q", "--quiet", action="store_true", help="Do not show the report.")
    @argument("-T", "--dump-profile", metavar="OUTPUT", help="Write the report to a file too.")
    @argument("statement", nargs="*", help="What to run; in a cell magic, the cell.")
    @needs_local_scope
    @line_cell_magic
    def mlrun(self, line: str, cell: str | None = None, local_ns: Any = None) -> Any:
        """Do what %tlrun does, with the options of pytorch_memlab's %mlrun."""
        __tracebackhide__ = "__ipython_bottom__"
        args, statement = _parsed(self.mlrun, line)
        quiet = args.quiet or args.return_profiler
        devices = None if args.gpu is None else (args.gpu,)
        wishes = _Wishes(args.function, args.dump_profile, quiet, devices)
        profiler = self._run(wishes, statement, cell, local_ns)
        return profiler if args.return_profiler else None

    def _run(
        self, wishes: _Wishes, statement: str, cell: str | None, local_ns: Any
    ) -> LineProfiler:
        __tracebackhide__ = True
        namespace = self.shell.user_ns if local_ns is None else local_ns
        if cell is None and not statement:
            raise UsageError("give a statement to run: %tlrun -f FUNC STATEMENT")
        if cell is None and not wishes.functions:
            raise UsageError(
                "name what to profile: %tlrun -f FUNC STATEMENT; the lines of a whole cell: %%tlrun"
            )
        try:
            profiler = self._profiler(wishes, namespace)
        except TensorlensError as error:
            raise UsageError(str(error)) from None
        source = statement if cell is None else cell
        try:
            if cell is None or wishes.functions:
                code = self._compiled(source, namespace)
                with profiler:
                    exec(code, self.shell.user_global_ns, namespace)
            else:
                self._run_cell_profiled(profiler, source, namespace)
        finally:
            namespace.pop(_SHOW, None)
            profiler.close()
            self._deliver(profiler, wishes)
        return profiler

    def _profiler(self, wishes: _Wishes, namespace: Any) -> LineProfiler:
        profiler = LineProfiler(devices=wishes.devices)
        for text in wishes.functions:
            try:
                function = eval(text, self.shell.user_global_ns, namespace)
            except Exception as error:
                raise UsageError(f"-f {text}: {type(error).__name__}: {error}") from None
            profiler.add_function(function)
        return profiler

    def _compiled(self, source: str, namespace: Any) -> types.CodeType:
        tree, filename = self._tree(source)
        return self._code(tree, filename, namespace)

    def _tree(self, source: str) -> tuple[ast.Module, str]:
        __tracebackhide__ = True
        transformed = self.shell.transform_cell(source)
        filename = self.shell.compile.cache(transformed, self.shell.execution_count)
        return self.shell.compile.ast_parse(transformed, filename), filename

    def _code(self, tree: ast.Module, filename: str, namespace: Any) -> types.CodeType:
        """Return the code of a cell; the value of its last expression is shown, as always."""
        if tree.body and isinstance(last := tree.body[-1], ast.Expr):
            namespace[_SHOW] = lambda value: self.shell.displayhook(value)
            show = ast.copy_location(ast.Name(_SHOW, ast.Load()), last.value)
            last.value = ast.copy_location(ast.Call(show, [last.value], []), last.value)
            ast.fix_missing_locations(tree)
        code = self.shell.compile(tree, filename, "exec")
        assert isinstance(code, types.CodeType)
        return code

    def _run_cell_profiled(self, profiler: LineProfiler, source: str, namespace: Any) -> None:
        __tracebackhide__ = True
        tree, filename = self._tree(source)
        # a framework is counted from its import on, and only between profiled lines
        imports, tree.body = _leading_imports(tree)
        if imports:
            module = ast.Module(imports, [])
            exec(self.shell.compile(module, filename, "exec"), namespace)
        code = self._code(tree, filename, namespace)
        lines = tuple(source.splitlines())
        for each in _codes(code):
            closure = tuple(types.CellType() for _ in each.co_freevars)
            entry = profiler.add_function(
                types.FunctionType(each, {"__name__": "__main__"}, None, None, closure)
            )
            if each is code:
                entry.name = entry.qualname = "cell"
                entry.first_line, entry.source, entry.source_note = 1, lines, None
        with profiler:
            exec(code, self.shell.user_global_ns, namespace)

    def _deliver(self, profiler: LineProfiler, wishes: _Wishes) -> None:
        report = profiler.result()
        if not wishes.functions:
            called = tuple(each for each in report.functions if each.calls)
            report = replace(report, functions=called or report.functions[:1])
        if not wishes.quiet:
            display(report)
        if wishes.save_as:
            try:
                print(f"Wrote {_saved(report, Path(wishes.save_as))}")
            except TensorlensError as error:
                raise UsageError(str(error)) from None


def _parsed(magic: Callable[..., Any], line: str) -> tuple[Any, str]:
    """Return the options and the statement, whose quotes are its own."""
    parser: Any = magic.parser  # type: ignore[attr-defined]
    words = line.split()
    takes_value = {
        flag
        for action in parser._actions
        if action.option_strings and action.nargs != 0
        for flag in action.option_strings
    }
    rest = line
    used = []
    while (words := rest.split(None, 1)) and words[0].startswith("-"):
        rest = words[1] if len(words) > 1 else ""
        if words[0] == "--":
            break
        used.append(words[0])
        if words[0] in takes_value and rest:
            value, rest = _value(rest)
            used.append(value)
    args = parse_argstring(magic, "")
    return parser.parse_args(used, args), rest.strip()
