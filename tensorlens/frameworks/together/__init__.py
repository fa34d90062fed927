"""Several frameworks in one process, such as torch and TensorFlow, as one framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property
from types import CodeType
from typing import Any, TypeVar

from tensorlens.errors import DeviceError, TensorlensError
from tensorlens.frameworks.base import (
    UNKNOWN,
    Counter,
    Findings,
    Framework,
    Recorder,
    RecordOptions,
    Root,
    Steps,
)
from tensorlens.frameworks.together.counters import JoinedCounter, counts_the_process
from tensorlens.frameworks.together.findings import joined_findings
from tensorlens.frameworks.together.recorder import JoinedRecorder
from tensorlens.frameworks.together.steps import JoinedSteps
from tensorlens.frameworks.traced_code import TracedCode
from tensorlens.records.failures import KeptGraph, Request
from tensorlens.signals import is_from_a_handler

_T = TypeVar("_T")


def together(frameworks: Sequence[Framework], notes: Sequence[str] = ()) -> Framework | None:
    """Return several frameworks as one; None where there is none.

    Args:
        frameworks: the adapters. One alone, without notes, is returned as it is.
        notes: lines for every report: why another framework is left out.
    """
    if not frameworks:
        return None
    if len(frameworks) == 1 and not notes:
        return frameworks[0]
    return Together(frameworks, notes)


def parts_of(framework: Framework | None) -> tuple[Framework, ...]:
    """Return the frameworks that one is made of: itself, where it is no composition."""
    if isinstance(framework, Together):
        return framework.parts
    return () if framework is None else (framework,)


def arrived(earlier: Framework | None, now: Framework | None) -> tuple[str, ...]:
    """Return the names of the frameworks that are in ``now`` and were not in ``earlier``."""
    known = parts_of(earlier)
    return tuple(each.name for each in parts_of(now) if each not in known)


class Together:
    """Several frameworks, as :class:`tensorlens.frameworks.base.Framework` describes one.

    What one of them cannot do while another one can is left out of the answer, with a note;
    where none can, its error is raised as if it were alone.
    """

    def __init__(self, parts: Sequence[Framework], notes: Sequence[str] = ()) -> None:
        self.parts = tuple(parts)
        self.name = " and ".join(part.name for part in parts)
        self._notes = tuple(notes)
        self._uncounted: dict[str, str] = {}
        """Framework's name to the note on why its host memory is not counted."""
        self._stand_ins: set[str] = set()
        """Sources of the counters that would stand in for it, were it alone."""
        self._joined: dict[tuple[int, ...], JoinedCounter] = {}
        """Counters by the ``id()`` of theirs, which they keep."""
        self._seen: list[list[str]] = []
        self._devices: list[str] = []

    @cached_property
    def _used(self) -> list[Callable[[], Sequence[str]]]:
        return [part.used_devices for part in self.parts if part.has_accelerators()]

    def cpu_counter(self) -> Counter | None:
        """Return a counter of all host memory that can be counted exactly, or else a fallback.

        Raises:
            UsageError: ``TENSORLENS_COUNTER`` asks for one that cannot be had in any of them.
        """
        answers, failed = self._ask(lambda part: part.cpu_counter())
        found = [(part, counter) for part, counter in answers if counter is not None]
        own = [
            counter
            for _, counter in found
            if not counts_the_process(counter) and "allocated" not in counter.missing
        ]
        self._uncounted = {}
        self._stand_ins = set()
        if not own:
            # a counter of the process counts what all have
            process = (counter for _, counter in found if counts_the_process(counter))
            return next(process, found[0][1] if found else None)
        others = [(part, counter) for part, counter in answers if counter not in own]
        reasons = {part.name: _why_not(part, counter) for part, counter in others} | failed
        self._stand_ins = {counter.source for _, counter in others if counter is not None}
        self._uncounted = {
            name: f"{name}: what it has on the CPU is not in these figures: {reason}"
            for name, reason in reasons.items()
        }
        return self._join(own, is_host=True)

    def has_accelerators(self) -> bool:
        """Return whether any of them could ever use one."""
        return bool(self._used)

    def used_devices(self) -> Sequence[str]:
        """Return the names of the accelerators in use so far in any of them.

        It is the same list object, not to be changed, until one more device is in use.
        """
        now = [used() for used in self._used]
        if now != self._seen:
            self._seen = [[*each] for each in now]
            self._devices = [*dict.fromkeys(device for each in self._seen for device in each)]
        return self._devices

    def device_counter(self, device: str) -> Counter:
        """Return the counter of an accelerator, which counts what all of them have there.

        Raises:
            DeviceError: none of them has such a device.
        """
        return self._join(
            self._ask_where_it_exists(lambda part: part.device_counter(device)), is_host=False
        )

    def device_name(self, device: Any) -> str:
        """Return the full spelling of a device, by the first that has it.

        Raises:
            DeviceError: none of them has such a device.
        """
        return self._ask_where_it_exists(lambda part: part.device_name(device))[0]

    def compiled_by(self, function: Any) -> str | None:
        """Return what compiles ``function`` away in any of them, or None."""
        return self._first(lambda part: part.compiled_by(function))

    def follow_code(self, code: CodeType) -> TracedCode | None:
        """Return what follows the graphs with nodes of ``code``, of the first that has graphs."""
        return self._first(lambda part: part.follow_code(code))

    def forward_of(self, item: Any) -> str | None:
        """Return the attribute to profile when ``item`` is a module of one of them, else None."""
        return self._first(lambda part: part.forward_of(item))

    def keep_compilers_out(self, functions: Sequence[Callable[..., Any]]) -> None:
        """Let compiled code of all of them call these as they are."""
        self._ask(lambda part: part.keep_compilers_out(functions))

    def watch(self) -> Callable[[], None]:
        """Count host memory and note which line allocates it, until what is returned is called.

        Raises:
            UsageError: ``TENSORLENS_COUNTER`` asks for a counter that none of them can have.
        """
        with ExitStack() as stack:
            self._ask(lambda part: stack.callback(part.watch()))
            kept = stack.pop_all()
        return kept.close

    def census(self, roots: Sequence[Root]) -> Findings:
        """Return every live tensor of all of them, and each device's ledger, with all in it."""
        answers, failed = self._ask(lambda part: part.census(roots))
        found = joined_findings([(part.name, each) for part, each in answers])
        lines = (f"{name} could not be looked at: {reason}" for name, reason in failed.items())
        return Findings(found.tensors, found.ledger, (*found.notes, *lines, *self._notes))

    def record(self, options: RecordOptions) -> Recorder:
        """Record every allocation and free from now on, in all that can.

        Raises:
            TensorlensError: none of them can; the text says why.
        """
        with ExitStack() as stack:

            def start(part: Framework) -> Recorder:
                recorder = part.record(options)
                stack.callback(recorder.read, True)
                return recorder

            answers, failed = self._ask(start)
            stack.pop_all()
        lines = [f"{name} is not recorded: {reason}" for name, reason in failed.items()]
        parts = [(part.name, recorder) for part, recorder in answers]
        return JoinedRecorder(parts, [*lines, *self._notes])

    def follow(self) -> Steps:
        """Follow a loop's steps from now on, in all that can.

        Raises:
            TensorlensError: none of them can; the text says why.
        """
        with ExitStack() as stack:

            def follow(part: Framework) -> Steps:
                steps = part.follow()
                stack.callback(steps.close)
                return steps

            answers, failed = self._ask(follow)
            stack.pop_all()
        lines = [f"{name} is not followed: {reason}" for name, reason in failed.items()]
        return JoinedSteps([(part.name, steps) for part, steps in answers], [*lines, *self._notes])

    def when_stepped(self, act: Callable[[], None]) -> Callable[[], None]:
        """Call ``act`` after each step of the first optimizer to step, whichever's it is."""
        leaders: list[Framework] = []

        def stepped(part: Framework) -> None:
            if not leaders:
                leaders.append(part)
            if leaders[0] is part:
                act()

        with ExitStack() as stack:
            self._ask(lambda part: stack.callback(part.when_stepped(lambda: stepped(part))))
            kept = stack.pop_all()
        return kept.close

    def pinned(self) -> int:
        """Return the bytes of page-locked memory that all of them handed out, as far as known."""
        known = [nbytes for part in self.parts if (nbytes := part.pinned()) >= 0]
        return sum(known) if known else UNKNOWN

    def failed_request(self, error: BaseException) -> Request | None:
        """Return what was asked for when ``error`` is a failed allocation of any, else None."""
        return self._first(lambda part: part.failed_request(error))

    def graphs_kept(self) -> Sequence[KeptGraph]:
        """Return the parts of autograd's graphs that keep something, framework by framework."""
        return [graph for part in self.parts for graph in part.graphs_kept()]

    def notes(self) -> Sequence[str]:
        """Return lines for the report, each once: theirs, and who is left out."""
        stand_ins = tuple(self._stand_ins)
        # what says that one of those counts is not so here
        own = [note for part in self.parts for note in part.notes() if not note.endswith(stand_ins)]
        return [*dict.fromkeys([*own, *self._uncounted.values(), *self._notes])]

    def _join(self, counters: Sequence[Counter], *, is_host: bool) -> Counter:
        """Return one counter for several, the same for the same ones."""
        if len(counters) == 1:
            return counters[0]
        key = tuple(map(id, counters))
        if key not in self._joined:
            self._joined[key] = JoinedCounter(counters, is_host=is_host)
        return self._joined[key]

    def _ask(
        self, question: Callable[[Framework], _T]
    ) -> tuple[list[tuple[Framework, _T]], dict[str, str]]:
        """Ask all; return the answers, and the reasons of those that failed, by name.

        Raises:
            Exception: the last one's failure, where all failed.
        """
        answers: list[tuple[Framework, _T]] = []
        failed: dict[str, str] = {}
        for part in self.parts:
            try:
                answers.append((part, question(part)))
            except Exception as error:
                is_last = part is self.parts[-1] and not answers
                if is_from_a_handler(error):
                    raise
                failed[part.name] = _words(error)
                if is_last and isinstance(error, TensorlensError):
                    raise type(error)("; ".join(dict.fromkeys(failed.values()))) from None
                if is_last:
                    raise
        return answers, failed

    def _ask_where_it_exists(self, question: Callable[[Framework], _T]) -> list[_T]:
        """Return the answers of those that have the device that is asked about.

        Raises:
            DeviceError: none has it.
        """
        answers: list[_T] = []
        refusals: list[str] = []
        for part in self.parts:
            try:
                answers.append(question(part))
            except DeviceError as error:
                refusals.append(str(error))
        if not answers:
            raise DeviceError("; ".join(dict.fromkeys(refusals)))
        return answers

    def _first(self, question: Callable[[Framework], _T | None]) -> _T | None:
        answers = map(question, self.parts)
        return next((answer for answer in answers if answer is not None), None)


def _why_not(part: Framework, counter: Counter | None) -> str:
    if counter is None:
        return "nothing here counts it"
    if "allocated" in counter.missing:
        return counter.missing["allocated"]
    # a note on a fallback is the reason, and then its source
    reasons = (note.rpartition(";")[0] for note in part.notes() if note.endswith(counter.source))
    return next(filter(None, reasons), f"{counter.source} counts the whole process alone")


def _words(error: Exception) -> str:
    if isinstance(error, TensorlensError):
        return str(error)
    return f"{type(error).__name__}: {error}"
