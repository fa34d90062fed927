"""``tensorlens leaks``: a script or module as ``python`` runs it, its loop's steps judged."""

from __future__ import annotations

import argparse
import asyncio
import functools
import inspect
import shlex
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorlens.cli.output.file import Output, add_options
from tensorlens.cli.output.messages import complain, say
from tensorlens.cli.program.arguments import add_program, program_of, words_of
from tensorlens.cli.program.execution import Program, plain
from tensorlens.cli.program.instrument import Instrument
from tensorlens.cli.program.loop_checks import LoopJudge
from tensorlens.cli.program.targets import Target, resolve
from tensorlens.errors import TensorlensError, UsageError
from tensorlens.frameworks.base import Adapter, compiler
from tensorlens.frameworks.import_hooks import when_one_arrives
from tensorlens.frameworks.registry import adapters, ask, supported
from tensorlens.leaks.report import LeakReport
from tensorlens.lines.exit_report import ExitReport
from tensorlens.ranks import current_rank
from tensorlens.render import renderer_for
from tensorlens.render.terminal import for_stream
from tensorlens.streams import write

_FORMATS = ("json", "html", "csv", "txt")
_LEAK_FOUND = 3

_EPILOG = """\
examples:
  tensorlens leaks train.py --lr 0.1            a step ends when the optimizer
                                                has stepped
  tensorlens leaks --step train_step train.py   or when a function of the
                                                script returns
  tensorlens leaks --step nets.Trainer.step -m train
  tensorlens leaks --fail -o leaks.json train.py

The loop is judged while it runs, for when it has ended what it left behind may
be gone: after 3 steps that count, after 6, and whenever there are twice as
many. The latest verdict is printed to standard output when the program ends,
also by an exception, Ctrl-C, SIGTERM, SIGHUP or another signal that can be
handled; all else that tensorlens says goes to standard error.

The exit code is the program's own; with --fail it is 3 where that is 0 and
there is a leak. It is 1 when tensorlens cannot start the program, 2 for a
usage error. Worker processes are not watched.
"""


def add_parser(subparsers: Any) -> None:
    """Add the verb to the ``tensorlens`` command line."""
    parser = subparsers.add_parser(
        "leaks",
        description="Run a script or a module as python would, and find the tensors that\n"
        "accumulate with each step of its loop: lines that made them, what holds them.",
        usage="%(prog)s [--step FUNCTION] [--warmup N] [--steps N]\n"
        "           [--fail] [-o FILE] [-f] (-m MODULE | SCRIPT) [ARGS...]",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--step",
        metavar="FUNCTION",
        help="the function that makes one step: function or Class.method of the script, or"
        " module.function; without it, each step of the first optimizer ends a step",
    )
    parser.add_argument(
        "--warmup",
        metavar="N",
        type=int,
        default=2,
        help="steps at the beginning that do not count (2; at least 1, in which the model is made)",
    )
    parser.add_argument(
        "--steps",
        metavar="N",
        type=int,
        default=1000,
        help="after so many steps that count the program goes on unwatched (1000)",
    )
    parser.add_argument(
        "--fail",
        action="store_true",
        help="exit with code 3 when there is a leak and the program's own code is 0",
    )
    add_options(parser, "the report")
    add_program(parser)
    parser.set_defaults(func=run, raises_for_the_program=True, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Run the program; return 0 or 3, or raise what it raises. Errors of our own give 1 or 2."""
    words = words_of(args)
    try:
        output = _output(args) if args.output else None
        judge = _judge(args)
        program = program_of(args, words)
        program.prepare()
        target = None if args.step is None else _target(args.step, program)
        session = Session(program, target, judge, output, [*shlex.split(args.parser.prog)], words)
        session.start()
    except TensorlensError as error:
        return complain(error)
    return session.run(fails=args.fail)


def _output(args: argparse.Namespace) -> Output:
    """Return where the report is to be written.

    Raises:
        TensorlensError: it could not be written there.
        UsageError: files with that ending keep no leak reports.
    """
    output = Output.of_program(args.output, args.force)
    if renderer_for(args.output).extension not in _FORMATS:
        raise UsageError(
            f"-o {args.output}: a leak report is written as .json, .html, .csv or .txt"
        )
    return output


def _judge(args: argparse.Namespace) -> LoopJudge:
    """Return what judges the loop.

    Raises:
        UsageError: a number of steps that cannot be.
    """
    if args.warmup < 1:
        raise UsageError(f"--warmup {args.warmup}: at least 1, in the first step the model is made")
    if args.steps < 2:
        raise UsageError(f"--steps {args.steps}: at least 2 are needed to tell growth")
    return LoopJudge(args.warmup, args.steps)


def _target(typed: str, program: Program) -> Target:
    """Return the function that makes one step.

    Raises:
        TensorlensError: there is no such function.
        UsageError: it is a file or a module.
    """
    if not typed.strip():
        raise UsageError("--step: give a function, as module.function")
    found: TensorlensError | None = None
    for name in (f"__main__.{typed}", typed):
        try:
            target = resolve(name, program)
        except TensorlensError as error:
            found = error
            continue
        if target.qualname is None:
            break
        return target
    else:
        assert found is not None
        raise type(found)(str(found).replace("-p ", "--step ", 1)) from None
    raise UsageError(f"--step {typed}: give a function, as module.function")


class Session:
    """One run: finds the steps of the program's loop, and reports when the process ends."""

    def __init__(
        self,
        program: Program,
        target: Target | None,
        judge: LoopJudge,
        output: Output | None,
        command: list[str],
        words: list[str],
    ) -> None:
        self._program = program
        self._target = target
        self._judge = judge
        self._output = output
        self._command = command
        self._words = words
        self._instrument = Instrument([target] if target else [], self._decorate)
        self._arrived = False
        self._follow_no_more: Callable[[], None] | None = None
        self._seen = False
        """Whether the function that makes a step was defined."""

    def start(self) -> None:
        """Take part in imports, and report when the process ends."""
        ExitReport(self._at_exit).install()
        if self._target is not None:
            self._instrument.install()
        when_one_arrives(self._begin)

    def run(self, *, fails: bool) -> int:
        """Run the program; return 0, or with ``fails`` 3 where there is a leak.

        Raises:
            BaseException: what the program raises.
        """
        try:
            self._program.execute(self._instrument.compile if self._target else plain)
        except SystemExit as ending:
            if ending.code not in (None, 0) or not (fails and self._judge.finish()):
                raise
        return _LEAK_FOUND if fails and self._judge.finish() else 0

    def _begin(self) -> None:
        self._arrived = True
        if self._judge.made:
            # the loop is one of the framework that was there before
            return
        self._judge.begin()
        self._judge.safely(self._follow)

    def _follow(self) -> None:
        """Find the ends of the steps, of all frameworks that have been imported."""
        if self._follow_no_more is not None:
            self._follow_no_more()
        if self._target is not None:
            self._follow_no_more = compiler.follow_runs()
        else:
            self._follow_no_more = _when_stepped(self._judge.step_ended)

    def _decorate(self, function: Any, named: bool) -> Any:
        if not named:
            return function
        self._seen = True
        return _ending(function, self._judge)

    def _at_exit(self, process: str | None) -> None:
        if process is not None:
            return
        report = _headed(self._judge.finish())
        if self._judge.refused is not None:
            say(f"the loop is not watched any more: {self._judge.refused}")
        if report is None:
            if self._judge.refused is None:
                say(self._why_nothing())
        elif self._output is None:
            _print(report)
            name = f"{Path(self._program.name).stem}.json"
            say(f"to keep this report: {self._again('-o', name)}")
        else:
            self._write(report, self._output)

    def _write(self, report: LeakReport, output: Output) -> None:
        problem = output.write_or_print(report)
        if problem is not None:
            say(f"error: {problem}")
            return
        say(f"wrote {output.typed}: {report.verdict}")

    def _why_nothing(self) -> str:
        start = "nothing was judged: "
        end = "" if self._output is None else f", so {self._output.typed} was not written"
        if not self._arrived:
            return f"{start}the program never imported {' or '.join(supported())}{end}"
        if self._judge.made:
            return f"{start}the loop made too few steps: {self._judge.made}{end}"
        if self._target is None:
            again = self._again("--step", "FUNCTION")
            return (
                f"{start}no optimizer stepped, as where a loop updates parameters by hand{end}; "
                f"name the function that makes one step: {again}, or call step() of a "
                "tensorlens.LeakWatch where a step of the loop ends, then print its result()"
            )
        what = "was never called" if self._seen else "was never defined"
        return f"{start}{self._target.qualname} {what}{end}"

    def _again(self, *options: str) -> str:
        given = ["--step", self._step()] if self._target and "--step" not in options else []
        return shlex.join([*self._command, *given, *options, *self._words])

    def _step(self) -> str:
        assert self._target is not None
        return self._target.typed.removeprefix("__main__.")


def _when_stepped(act: Callable[[], None]) -> Callable[[], None]:
    """Call ``act`` after each step of the first optimizer to step; return what ends that."""
    leaders: list[Adapter] = []

    def stepped(adapter: Adapter) -> None:
        if not leaders:
            leaders.append(adapter)
        if leaders[0] is adapter:
            act()

    with ExitStack() as stack:
        ask(adapters(), lambda each: stack.callback(each.when_stepped(lambda: stepped(each))))
        kept = stack.pop_all()
    return kept.close


def _headed(report: LeakReport | None) -> LeakReport | None:
    """Return the report with the rank that it is of first among its notes."""
    rank = current_rank()
    if report is None or rank is None:
        return report
    return replace(report, notes=(f"of {rank}", *report.notes))


def _print(report: LeakReport) -> None:
    with suppress(OSError, ValueError, RuntimeError, AttributeError):
        write(for_stream(str(report), sys.stdout), sys.stdout)


class _Depth(threading.local):
    calls = 0


def _ending(function: Any, judge: LoopJudge) -> Any:
    """Return the function, whose outermost call ends a step when it has returned."""
    if inspect.isasyncgenfunction(function):
        return function
    depth, step_ended = _Depth(), judge.step_ended
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def to_its_end(*arguments: Any, **options: Any) -> Any:
            result = yield from function(*arguments, **options)
            judge.step_ended()
            return result

        return to_its_end
    if asyncio.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*arguments: Any, **options: Any) -> Any:
            result = await function(*arguments, **options)
            judge.step_ended()
            return result

        return awaited

    @functools.wraps(function)
    def called(*arguments: Any, **options: Any) -> Any:
        if compiler.is_tracing():
            return function(*arguments, **options)
        if compiler.is_building():
            compiler.when_run(step_ended)
            return compiler.as_called(function)(*arguments, **options)
        depth.calls += 1
        try:
            result = function(*arguments, **options)
        finally:
            depth.calls -= 1
        if not depth.calls:
            step_ended()
        return result

    # autograph is to convert what is inside and not this; see Compiler.as_called
    vars(called)["autograph_info__"] = {}
    return called
