"""``tensorlens run --record FILE``: a whole program recorded, from its import of a framework."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tensorlens.cli.output.file import Output
from tensorlens.cli.output.messages import say
from tensorlens.frameworks.import_hooks import when_imported
from tensorlens.guards import reason
from tensorlens.recording.oom.annotation import annotate_unhandled
from tensorlens.recording.oom.hooks import explain_oom
from tensorlens.recording.record import record
from tensorlens.render import ending_of

_FRAMEWORKS = ("torch", "tensorflow")
_CAN_BE_SHOWN = ("json", "tlens", "tlens.gz", "pickle")


class RecordedRun:
    """Records a program and writes the recording when the process ends.

    Args:
        output: where to.
        limit: how many events are kept.
        command: how tensorlens was called, for what to type next.

    Raises:
        UsageError: ``limit`` is not positive.
    """

    def __init__(self, output: Output, limit: int, command: Sequence[str]) -> None:
        self._output = output
        self._command = command
        self._recording = record(limit=limit)
        self._begun = False
        self._refused: str | None = None
        """Why nothing is recorded."""

    def start(self) -> None:
        """Begin as soon as a framework is there, and explain failed allocations from now on."""
        explain_oom()
        for name in _FRAMEWORKS:
            when_imported(name, self._begin)

    @contextmanager
    def around_program(self) -> Iterator[None]:
        """Explain a failed allocation that ends the program, whatever hooks it has put in."""
        try:
            yield
        except BaseException as error:
            annotate_unhandled(error)
            raise

    def stop(self) -> None:
        """Record no more; what is done from here on is not the program's."""
        if not self._begun:
            return
        try:
            self._recording.stop()
            self._refused = self._recording.failure
        except Exception as failure:
            self._refused = reason(failure)

    def write(self) -> None:
        """Write the recording and say so, or say why there is none."""
        output = self._output
        if not self._begun and self._refused is None:
            self._refused = f"the program never imported {' or '.join(_FRAMEWORKS)}"
        if self._refused is not None:
            say(f"--record: {self._refused}, so {output.typed} was not written")
            return
        problem = output.write_or_print(self._recording)
        if problem is not None:
            say(f"error: {problem}")
            return
        events = len(self._recording.log)
        say(f"wrote {output.typed} ({_counted(events)}{self._lost()}); {self._next_step()}")

    def _lost(self) -> str:
        dropped = self._recording.origin.dropped
        if not dropped:
            return ""
        return f", the last of {dropped + len(self._recording.log):,}: --events N keeps more"

    def _begin(self) -> None:
        if self._begun:
            # the recording takes up by itself what comes later
            return
        # in the program's own import, which is to go on whatever happens here
        try:
            self._recording.begin()
            self._begun = True
        except Exception as failure:
            self._refused = reason(failure)

    def _next_step(self) -> str:
        name = shlex.quote(self._output.typed)
        ending = ending_of(self._output.path.name)
        if ending in _CAN_BE_SHOWN:
            return f"next: {shlex.join([*self._command[:-1], 'show'])} {name}"
        if ending == "html":
            return f"next: open {name} in a browser"
        return f"next: {'less' if ending == 'txt' else 'head'} {name}"


def _counted(events: int) -> str:
    return f"{events:,} event" if events == 1 else f"{events:,} events"
