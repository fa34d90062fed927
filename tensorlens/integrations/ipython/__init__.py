"""``%tlrun`` and ``%%tlrun`` for IPython and Jupyter; ``%mlrun`` for pytorch_memlab's users.

::

    %load_ext tensorlens
    %tlrun -f Net.forward -f step step(model, batch)

    %%tlrun
    y = model(x)
    loss = y.sum()
"""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, needs_local_scope
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display

from tensorlens import errors
from tensorlens.errors import TensorlensError
from tensorlens.integrations.ipython.source import ProfiledSource
from tensorlens.lines.profiler import LineProfiler
from tensorlens.lines.report import LineReport
from tensorlens.render.formats import file_content, save, write_whole

_VALUE = re.compile(r""""([^"]*)"|'([^']*)'|(\S+)""")


def load_ipython_extension(shell: Any) -> None:
    """Register the magics: ``%load_ext tensorlens``."""
    shell.register_magics(TensorlensMagics)


def unload_ipython_extension(shell: Any) -> None:
    """Remove the magics: ``%unload_ext tensorlens``."""
    for kind in ("line", "cell"):
        for name in ("tlrun", "mlrun"):
            shell.magics_manager.magics[kind].pop(name, None)


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
    @line_cell_magic
    @needs_local_scope
    def tlrun(self, line: str, cell: str | None = None, local_ns: Any = None) -> Any:
        """Run a statement or a cell and show the memory of each line.

        ``%tlrun -f FUNC STATEMENT`` shows the lines of FUNC, ``%%tlrun`` those of its cell.
        """
        __tracebackhide__ = "__ipython_bottom__"
        args, statement = _parsed(self.tlrun, line)
        args.quiet |= args.give
        _, report = self._run(args, args.save, None, statement, cell, local_ns)
        return report if args.give else None

    @magic_arguments()
    @argument("-f", "--function", metavar="FUNC", action="append", default=[], help="As %%tlrun.")
    @argument("-c", "--column", metavar="COLS", action="append", default=[], help="Ignored.")
    @argument("-D", "--no_default_columns", action="store_true", help="Ignored.")
    @argument("-r", "--return-profiler", action="store_true", help="Return the LineProfiler.")
    @argument("-g", "--gpu", metavar="GPU_ID", help="Report only on this GPU.")
    @argument("-q", "--quiet", action="store_true", help="Do not show the report.")
    @argument("-T", "--dump-profile", metavar="OUTPUT", help="Write the report to a file too.")
    @argument("statement", nargs="*", help="What to run; in a cell magic, the cell.")
    @line_cell_magic
    @needs_local_scope
    def mlrun(self, line: str, cell: str | None = None, local_ns: Any = None) -> Any:
        """Do what %tlrun does, with the options of pytorch_memlab's %mlrun."""
        __tracebackhide__ = "__ipython_bottom__"
        args, statement = _parsed(self.mlrun, line)
        gpu = int(args.gpu) if (args.gpu or "").isdigit() else args.gpu
        devices = None if gpu is None else (gpu,)
        args.quiet |= args.return_profiler
        profiler, _ = self._run(args, args.dump_profile, devices, statement, cell, local_ns)
        return profiler if args.return_profiler else None

    def _run(
        self,
        args: argparse.Namespace,
        save_as: str | None,
        devices: tuple[Any, ...] | None,
        statement: str,
        cell: str | None,
        local_ns: Any,
    ) -> tuple[LineProfiler, LineReport]:
        __tracebackhide__ = True
        functions: list[str] = args.function
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
            report = _deliver(profiler, functions, args.quiet, save_as)
        return profiler, report


def _parsed(method: Any, line: str) -> tuple[argparse.Namespace, str]:
    """Return the options, and the statement unchanged.

    argparse would take words of a statement that begin with a dash for options.
    """
    parser = method.parser
    # nargs is None for an option with one value
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


def _deliver(
    profiler: LineProfiler, functions: list[str], quiet: bool, save_as: str | None
) -> LineReport:
    report = profiler.result()
    if not functions:
        # the cell, and functions that it called
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
    except errors.UsageError:  # no format by this ending: text, as %lprun writes
        try:
            text = str(file_content(report, "txt"))
            write_whole(path, text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            raise TensorlensError(f"cannot write {path}: {error.strerror}") from None
        return path
