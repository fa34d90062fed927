"""``tensorlens run``: a script or module as ``python`` runs it, with its lines profiled."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tensorlens import config
from tensorlens.cli.options import add_output, add_program
from tensorlens.cli.output import Output, say
from tensorlens.cli.programs.instrument import Instrument
from tensorlens.cli.programs.session import ProgramSession
from tensorlens.cli.programs.targets import library_model_module, resolve
from tensorlens.errors import UsageError
from tensorlens.frameworks.registry import adapters, supported, when_any_imported
from tensorlens.guards import reason
from tensorlens.lines.exit_report import set_workers_output
from tensorlens.lines.profile import Options, profile
from tensorlens.lines.report import Ending
from tensorlens.render.figures import counted
from tensorlens.render.formats import ENDINGS, READ_AGAIN, RECORDING_ENDINGS, either
from tensorlens.units import format_bytes

_EVENTS = 1_000_000
_SHOWN_ONCE = [each for each in (*RECORDING_ENDINGS, *ENDINGS) if each not in READ_AGAIN]
_NO_FRAMEWORK = f"the program never imported {' or '.join(supported())}"

_EPILOG = """\
examples:
  tensorlens run train.py --lr 0.1         all functions of the script, and its
                                           own loop outside of functions; or
                                           what @tensorlens.profile decorates
  tensorlens run -p nets -o run.json -m train.main
  tensorlens run -p nets.resnet.Net.forward train.py
  tensorlens run --record run.tlens train.py

The exit code is the program's own; 1 when tensorlens cannot start it, 2 for
a usage error. Tables go to standard output when the program ends, also by an
exception, Ctrl-C, SIGTERM, SIGHUP or another signal that can be handled; all
else that tensorlens says goes to standard error. If FILE cannot be written at
the end, the tables are printed instead. With --json standard output is the
document alone; the program's own output goes to standard error.

--record keeps every allocation and free, from the import of torch to the
program's end, and explains an allocation that fails. It is of this process
alone: worker processes are not recorded.

A worker process that ran profiled code reports too, with -o run.json to
run.PID.json. -p reaches forked workers only; decorators reach spawned ones
as well.
"""


def add_run(subparsers: Any) -> None:
    """Add the verb to the ``tensorlens`` command line."""
    parser = subparsers.add_parser(
        "run",
        description="Run a script or a module as python would, with the memory of its lines\n"
        "profiled: of what @tensorlens.profile decorates, and of what -p names. A program\n"
        "that does not name tensorlens is profiled as with -p and its own name, unless\n"
        "it is only recorded.",
        usage="%(prog)s [-p MODULE_OR_PATH]... [-o FILE] [--json]\n"
        "           [--no-source] [--record FILE [--events N]] [-f]\n"
        "           (-m MODULE | SCRIPT) [ARGS...]",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-p",
        "--profile",
        metavar="MODULE_OR_PATH",
        action="append",
        default=[],
        help="profile all functions of a .py file, folder, module or package, or one"
        " module.function or module.Class; of the program itself its top-level lines too, where"
        " they do its work; may be repeated",
    )
    add_output(parser, "the figures")
    parser.add_argument(
        "--record",
        metavar="FILE",
        help="record every allocation and free, and write that to FILE: .tlens, .tlens.gz,"
        f" .json, .pickle (can be shown again), {either(_SHOWN_ONCE)}",
    )
    parser.add_argument(
        "--events",
        metavar="N",
        type=int,
        help="with --record: keep the last N events (1,000,000 unless told), 32 bytes each",
    )
    add_program(parser)
    parser.set_defaults(func=ProfiledRun.main, raises_for_the_program=True, parser=parser)


def _enable(output: Output | None) -> None:
    """Enable tensorlens here and in workers; name the workers' files after the output."""
    set_workers_output(None if output is None else output.path)
    # through the environment, so that spawned workers of the program follow
    if not config.load().enabled:
        os.environ["TENSORLENS"] = "1"
    config.current.cache_clear()
    config.current()


class RecordedRun:
    """Records a program from its import of a framework, and writes that when the process ends.

    Args:
        output: where to.
        limit: how many events are kept.
        command: how tensorlens was called, for what to type next.
    """

    def __init__(self, output: Output, limit: int, command: Sequence[str]) -> None:
        from tensorlens.recording.record import record

        self._output = output
        self._command = command
        self._recording = record(limit=limit)
        self._has_begun = False
        self._refusal: str | None = None
        """Reason why nothing is recorded."""

    def start(self) -> None:
        """Record from the import of a framework on; explain failed allocations from now on."""
        from tensorlens.recording.oom.annotation import explain_oom

        explain_oom()
        when_any_imported(self._begin)

    def stop(self) -> None:
        """Stop recording: the program has ended."""
        if not self._has_begun:
            return
        try:
            self._recording.stop()
            self._refusal = self._recording.failure
        except Exception as failure:
            self._refusal = reason(failure)

    def write(self, ending: Ending | None) -> None:
        """Write the recording and say so, or say why there is none."""
        from tensorlens.lines.present import ending_text
        from tensorlens.recording.analysis.levels import peak_bytes
        from tensorlens.recording.recordings import Recording

        output, recording = self._output, self._recording.still()
        if not self._has_begun and self._refusal is None:
            self._refusal = _NO_FRAMEWORK
        if self._refusal is not None:
            say(f"--record: {self._refusal}, so {output.typed} was not written")
            return
        if ending is not None:
            notes = (*recording.origin.notes, ending_text(ending))
            recording = Recording(recording.log, replace(recording.origin, notes=notes))
        count, dropped = len(recording.log), recording.origin.dropped
        text = counted(count, "event")
        if dropped:
            text += f", the last of {dropped + count:,}: --events N keeps more"
        peaks = {device: peak_bytes(recording, device) for device in recording.devices}
        output.deliver(
            recording, f" ({text}{_peaks_text(peaks)}); {output.next_step(self._command)}"
        )

    def _begin(self) -> None:
        if self._has_begun:
            # the recording follows later frameworks by itself
            return
        # runs inside the program's own import, which must not fail
        try:
            self._recording.begin()
            self._has_begun = True
        except Exception as failure:
            self._refusal = reason(failure)


def _peaks_text(peaks: Mapping[str, int]) -> str:
    """Return the peaks of devices, highest first: ``, peak 1.20 GiB on cuda:0``."""
    used = sorted((-nbytes, device) for device, nbytes in peaks.items() if nbytes)
    told = " and ".join(f"{format_bytes(-nbytes)} on {device}" for nbytes, device in used)
    return told and f", peak {told}"


class ProfiledRun(ProgramSession):
    """A run whose decorated functions are measured, and which may be recorded."""

    otherwise = " would keep a recording: give it to --record"

    def __init__(self, args: argparse.Namespace) -> None:
        if args.events is not None and not args.record:
            args.parser.error("--events is for --record FILE")
        super().__init__(args)
        self.recorded = self._recorded(args) if args.record else None
        _enable(self.output)
        program = self.program
        self._is_default = not args.profile and not args.record and program.is_unmarked
        """Whether the program itself is profiled because no target was named."""
        typed = [program.name] if self._is_default else args.profile
        targets = [resolve(each, program) for each in typed]
        self.instrument = Instrument(targets, self._decorate, profile.profiler)

    def _recorded(self, args: argparse.Namespace) -> RecordedRun:
        target = Output.checked(args.record, args.force, per_rank=True)
        if self.output is not None and self.output.path == target.path:
            raise UsageError(
                f"-o and --record both name {args.record}: give each a file of its own"
            )
        limit = _EVENTS if args.events is None else args.events
        if limit < 1:
            raise UsageError(f"--events {limit}: give how many events are kept, 1 or more")
        return RecordedRun(target, limit, self.command)

    def start(self) -> None:
        """Take over the report at exit; with ``-p``, decorate modules as they are imported."""
        profile.profiler.accumulates = not self._prints_tables
        profile.profiler.exit_report = self.exit_report
        super().start()
        if self.recorded is not None:
            self.recorded.start()

    def run(self) -> int:
        """Run the program and return 0; its exceptions propagate."""
        try:
            self.execute()
        except BaseException as error:
            profile.profiler.release(error)
            if self.recorded is not None:
                from tensorlens.recording.oom.annotation import annotate_unhandled

                # also if the program has replaced the hooks for exceptions
                annotate_unhandled(error)
            raise
        profile.profiler.release()
        return 0

    def _decorate(self, function: Any, named: bool) -> Any:
        return profile.profiler.decorate(function, Options(if_called=not named))

    @property
    def _prints_tables(self) -> bool:
        return self.output is None and self.document is None

    def at_exit(self, process: str | None) -> None:
        """Report the lines, then the recording."""
        recorded = self.recorded if process is None else None
        if recorded is None:
            self._report_lines(process)
            return
        recorded.stop()
        try:
            self._report_lines(process)
        finally:
            recorded.write(profile.profiler.ending)

    def _report_lines(self, process: str | None) -> None:
        profiler, output = profile.profiler, self.output
        if process is not None or self._prints_tables:
            profiler.report_at_exit(process)
            if process is None and config.prints_tables():
                self._say_next(profiler.has_printed, "")
            return
        report = profiler.result(profiler.unprinted(None))
        if self.document is not None:
            self.document.write(report)
        if report.functions and output is not None:
            output.deliver(report, f"; {output.next_step(self.command)}")
        self._say_next(bool(report.functions), self.not_written())

    def _say_next(self, was_profiled: bool, consequence: str) -> None:
        """Say what of ``-p`` did not run, and what to type next."""
        if not self._is_default:
            self._report_targets()
        if was_profiled:
            self._point_to_library()
            if self._prints_tables:
                say(self.to_keep("these figures", *self._typed()))
        elif consequence or self.recorded is None or self.instrument.targets:
            # else a recording may be all that was wanted
            say(f"nothing was profiled{self._why_nothing(consequence)}")

    def _report_targets(self) -> None:
        entries = profile.profiler.functions
        for target in self.instrument.targets:
            if not any(target.covers(filename) for filename in self.instrument.seen):
                say(f"-p {target.typed}: the program never imported it")
                continue
            inside = [entry for entry in entries if target.covers(entry.filename)]
            if not inside:
                say(
                    f"-p {target.typed}: no function of it was defined; put the lines into one, or"
                    " into a block: with tensorlens.profile:"
                )
            elif not any(entry.ran or entry.was_read or entry.is_cleared for entry in inside):
                count = len(inside)
                functions = "its function was" if count == 1 else f"its {count} functions were"
                say(f"-p {target.typed}: {functions} never called")

    def _point_to_library(self) -> None:
        """Point to the model's own lines where they are in a library, which -p can profile."""
        name = library_model_module()
        filename = getattr(sys.modules.get(name or ""), "__file__", None)
        if filename and not any(target.covers(filename) for target in self.instrument.targets):
            again = self.again(*self._typed(), "-p", str(name))
            say(f"the model's own lines are in {name}: {again}")

    def _why_nothing(self, consequence: str) -> str:
        profiler = profile.profiler
        if any(each.is_cleared for each in (*profiler.functions, *profiler.blocks.values())):
            return f" since the figures were cleared{consequence}"
        name = self.program.name
        if self._is_default:
            why = f"no function of {name} was called" if adapters() else _NO_FRAMEWORK
            return f"{consequence}: {why}"
        if self.instrument.targets:
            return consequence
        return (
            f"{consequence}: decorate a function with @tensorlens.profile, or profile all of"
            f" {name}: {self.again('-p', name)}"
        )

    def _typed(self) -> list[str]:
        return [word for target in self.instrument.targets for word in ("-p", target.typed)]
