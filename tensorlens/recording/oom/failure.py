"""An allocation that failed: who asked, what was there, what helps."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from tensorlens.recording.analysis.lines import Lines
from tensorlens.recording.analysis.phases import Phases
from tensorlens.recording.record import running
from tensorlens.recording.recordings import Recording
from tensorlens.records.events import OOM, EventLog, Frame, Stacks
from tensorlens.records.failures import Request
from tensorlens.render.shown import Shown
from tensorlens.tensors.snapshot import Snapshot
from tensorlens.user_code import is_foreign


@dataclass(frozen=True, slots=True)
class Remedy:
    """Something that would have freed memory."""

    nbytes: int | None
    """How much of what was resident it is about; None where that is not known."""
    text: str
    """One line: what it is, and what to do."""


@dataclass(frozen=True, slots=True)
class OutOfMemory(Shown):
    """Report on an allocation that failed; prints itself as text."""

    PRESENTER: ClassVar[str] = "tensorlens.recording.oom.present"

    request: Request
    snapshot: Snapshot
    """Snapshot of memory while the error was on its way, or after it was handled."""
    remedies: tuple[Remedy, ...] = ()
    """Memory that could be freed."""
    remarks: tuple[str, ...] = ()
    """Other facts: a limit of the process, how much is cached and in which pieces."""
    handled: bool = False
    """Whether the program handled the error: what was in memory then may have been freed since."""

    def without_source(self) -> OutOfMemory:
        """Return it without the text of the line that asked: itself where it is not known."""
        if not self.request.source:
            return self
        return replace(self, request=replace(self.request, source=None))


_OURS = "<tensorlens"
"""How the names of code begin that stands between a profiled function and its caller."""


def located(request: Request, error: BaseException, recording: Recording | None) -> Request:
    """Return the request with what is known of who asked.

    That is what a recording noted of it, ``recording`` or one that is on; else what the traceback
    tells.
    """
    try:
        for each in (recording, *running()):
            found = None if each is None else _recorded(request, each.log)
            if found is not None:
                return _with_source(found)
    except MemoryError:
        # a log takes more than a traceback
        pass
    return _with_source(_traced(request, error))


def _recorded(request: Request, log: EventLog) -> Request | None:
    """Return the request as the log has it: the last that failed, if it is the same."""
    row = next((row for row in range(len(log) - 1, -1, -1) if log.kind[row] == OOM), None)
    if row is None or request.device != log.devices[log.device[row]]:
        return None
    nbytes = log.size[row]
    if request.nbytes is None or (request.exact and request.nbytes != nbytes):
        return None
    stack, context = log.stack[row], log.context[row]
    phase = Phases(log.stacks, log.contexts).of(stack, context)
    lines = Lines(log.stacks, log.contexts)
    return replace(
        request,
        nbytes=nbytes,
        exact=True,
        line=lines.charged(stack, context, phase),
        module=lines.module(stack, context, phase),
        op=None if context < 0 else log.contexts[context].outer or log.contexts[context].op,
        phase=phase,
    )


def _traced(request: Request, error: BaseException) -> Request:
    stacks = Stacks()
    stack = stacks.add([*_frames(error)])
    phase = Phases(stacks, ()).of(stack, -1)
    return replace(
        request,
        # a graph's node was made by another line than the one that runs the graph
        line=request.line or Lines(stacks, ()).charged(stack, -1, phase),
        phase=phase if phase != "other" else None,
    )


def _frames(error: BaseException) -> Iterator[Frame]:
    """Give the frames of the traceback and those that called it, innermost first."""
    walked = [*traceback.walk_tb(error.__traceback__)]
    callers = walked[0][0].f_back if walked else None
    # of no frame it would be our own stack
    outer = () if callers is None else traceback.walk_stack(callers)
    for frame, lineno in (*reversed(walked), *outer):
        code = frame.f_code
        user = not is_foreign(code.co_filename) and not code.co_filename.startswith(_OURS)
        yield Frame(code.co_filename, lineno or code.co_firstlineno, code.co_qualname, user)


def _with_source(request: Request) -> Request:
    if request.line is None:
        return request
    text = linecache.getline(request.line.filename, request.line.lineno).strip()
    return replace(request, source=text or None)
