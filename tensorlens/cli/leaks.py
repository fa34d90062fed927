"""``tensorlens leaks``: a script or module as ``python`` runs it, its loop's steps judged."""

from __future__ import annotations

import argparse
import functools
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from tensorlens.cli.options import add_output, add_program
from tensorlens.cli.output import say
from tensorlens.cli.programs.instrument import Instrument
from tensorlens.cli.programs.program import Program
from tensorlens.cli.programs.session import ProgramSession
from tensorlens.cli.programs.targets import Target, resolve
from tensorlens.errors import TensorlensError, UsageError
from tensorlens.frameworks.base import Adapter
from tensorlens.frameworks.compilers import compiler
from tensorlens.frameworks.registry import adapters, ask, supported, when_any_imported
from tensorlens.leaks.watch import LoopJudge
from tensorlens.ranks import current_rank
from tensorlens.render.formats import ENDINGS, either
from tensorlens.streams import for_stream, write
from tensorlens.user_code import not_run_by_a_call

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
usage error. Worker processes are not watched. With --json standard output is
the document alone; the program's own output goes to standard error.
"""


def add_leaks(subparsers: Any) -> None:
    """Add the verb to the ``tensorlens`` command line."""
    parser = subparsers.add_parser(
        "leaks",
        description="Run a script or a module as python would, and find the tensors that\n"
        "accumulate with each step of its loop: lines that made them, what holds them.",
        usage="%(prog)s [--step FUNCTION] [--warmup N] [--steps N]\n"
        "           [--fail] [-o FILE] [--json] [--no-source] [-f]\n"
        "           (-m MODULE | SCRIPT) [ARGS...]",
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
    add_output(parser, "the report")
    add_program(parser)
    parser.set_defaults(func=WatchedRun.main, raises_for_the_program=True, parser=parser)


def _target(typed: str, program: Program) -> Target:
    """Return the function that makes one step."""
    try:
        target = resolve(f"__main__.{typed}", program)
    except TensorlensError:
        target = resolve(typed, program, "--step")
    if target.qualname is None:
        raise UsageError(f"--step {typed}: give a function, as module.function")
    return target


class WatchedRun(ProgramSession):
    """A run whose loop steps are judged."""

    otherwise = f": a leak report is written as {either(ENDINGS)}"

    def __init__(self, args: argparse.Namespace) -> None:
        if args.warmup < 1:
            raise UsageError(
                f"--warmup {args.warmup}: at least 1, in the first step the model is made"
            )
        if args.steps < 3:
            raise UsageError(
                f"--steps {args.steps}: at least 3 are needed: the last does not count"
            )
        super().__init__(args)
        self._fails = args.fail
        self._judge = LoopJudge(args.warmup, args.steps)
        self._target = None if args.step is None else _target(args.step, self.program)
        self.instrument = Instrument([self._target] if self._target else [], self._decorate)
        self._framework_arrived = False
        self._stop_following: Callable[[], None] | None = None
        self._state = "was never defined"
        """Why the function of ``--step`` made no step."""

    def start(self) -> None:
        """Take part in imports, and report when the process ends."""
        super().start()
        when_any_imported(self._begin)

    def run(self) -> int:
        """Run the program; return 0, or with ``--fail`` 3 where there is a leak.

        Raises:
            BaseException: what the program raises.
        """
        try:
            self.execute()
        except SystemExit as ending:
            # as Python takes it; the program's own may compare as it likes
            code: Any = 0 if ending.code is None else ending.code
            is_success = issubclass(type(code), int) and int.__eq__(code, 0)
            if not (is_success and self._fails and self._judge.finish()):
                raise
        return _LEAK_FOUND if self._fails and self._judge.finish() else 0

    def _begin(self) -> None:
        self._framework_arrived = True
        if self._judge.made:
            # the loop is one of the framework that was there before
            return
        self._judge.begin(self._follow)

    def _follow(self) -> None:
        """Find the ends of the steps, of all frameworks that have been imported."""
        if self._stop_following is not None:
            self._stop_following()
        if self._target is not None:
            self._stop_following = compiler.follow_runs()
        else:
            self._stop_following = _when_stepped(self._judge)

    def _decorate(self, function: Any, named: bool) -> Any:
        if not named:
            return function
        if not_run_by_a_call(function):
            self._state = "is a generator or coroutine: name the function that runs it"
            return function
        self._state = "was never called"
        return _ends_step(function, self._judge)

    def at_exit(self, process: str | None) -> None:
        """Report the latest verdict, or why there is none; workers are not watched."""
        if process is not None:
            return
        report, rank = self._judge.finish(), current_rank()
        if self._judge.refusal is not None:
            say(f"the loop is not watched any more: {self._judge.refusal}")
        if report is None:
            why = self._judge.refusal or self._why_nothing()
            if self._judge.refusal is None:
                say(why)
            if self.document is not None:
                self.document.write(self._judge.empty_report(why))
            return
        if rank is not None:
            report = replace(report, notes=(f"of {rank}", *report.notes))
        if self.document is not None:
            self.document.write(report)
        if self.output is not None:
            self.output.deliver(report, f": {report.verdict}")
        elif self.document is None:
            with suppress(OSError, ValueError, RuntimeError, AttributeError):
                write(for_stream(str(report), sys.stdout), sys.stdout)
            step = ["--step", self._target.typed.removeprefix("__main__.")] if self._target else []
            say(self.to_keep("this report", *step))

    def _why_nothing(self) -> str:
        start, end = "nothing was judged: ", self.not_written()
        if not self._framework_arrived:
            return f"{start}the program never imported {' or '.join(supported())}{end}"
        if self._judge.made:
            return f"{start}the loop made too few steps: {self._judge.made}{end}"
        if self._target is None:
            again = self.again("--step", "FUNCTION")
            return (
                f"{start}no optimizer stepped{end}; "
                f"name the function that makes one step: {again}, or call step() of a "
                "tensorlens.LeakWatch where a step of the loop ends, then print its report"
            )
        return f"{start}{self._target.qualname} {self._state}{end}"


def _when_stepped(judge: LoopJudge) -> Callable[[], None]:
    """Judge after each step of the first optimizer to step; return a function to stop."""
    leaders: list[Adapter] = []

    def stepped(adapter: Adapter) -> None:
        if not leaders:
            leaders.append(adapter)
        if leaders[0] is adapter:
            judge.step_ended()

    with ExitStack() as stack:
        ask(adapters(), lambda each: stack.callback(each.when_stepped(lambda: stepped(each))))
        return stack.pop_all().close


class _Depth(threading.local):
    calls = 0


def _ends_step(function: Any, judge: LoopJudge) -> Any:
    """Wrap a function so that a step ends when its outermost call returns."""
    depth, step_ended = _Depth(), judge.step_ended

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
