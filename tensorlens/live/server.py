"""Server of this process's figures to watchers, in threads of its own.

Costly measurements are on only while a client is connected.
"""

from __future__ import annotations

import atexit
import functools
import os
import re
import shlex
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import asdict
from heapq import nlargest
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tensorlens import ranks
from tensorlens.errors import TensorlensError
from tensorlens.frameworks.host.loop_steps import Steps
from tensorlens.frameworks.registry import adapters
from tensorlens.guards import reason
from tensorlens.interpreter import start_thread
from tensorlens.lines.region import LevelReader
from tensorlens.live.protocol import (
    VERSION,
    Ask,
    JobLevels,
    LineTotal,
    LineTotals,
    Look,
    RoleTotal,
    TensorTotal,
    TensorTotals,
    connection_of,
    listener,
    receive,
    send,
)
from tensorlens.live.steps import StepCounter
from tensorlens.render import formats
from tensorlens.render.shown import View
from tensorlens.render.source import place, printable
from tensorlens.tensors.present.inventory import inventories
from tensorlens.tensors.reporter import MemReporter

_ROWS = 40
_LINES = 100
"""Lines sent of each order: a text for each of thousands would hold the program up."""
_NO_LINES = (
    "the lines are n/a: the counter of host memory does not tell which line allocates (see"
    " tensorlens doctor)"
)


class LiveLines:
    """Sums of live blocks by the line that allocated them, since this object exists."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._readers: list[Steps] = []
        """One for each framework: its live blocks by the line that allocated them."""
        self._notes: list[str] = []
        for each in adapters():
            try:
                self._readers.append(each.follow())
            except Exception as error:
                self._notes.append(f"{each.name}: lines are not noted: {reason(error)}")
        self._most: dict[tuple[int, int], int] = {}
        """Maximum bytes by (framework number, line number)."""

    def totals(self) -> LineTotals:
        """Return the first lines by bytes now, by most and by blocks; most bytes now first."""
        found = {
            (number, birth): (blocks, nbytes)
            for number, reader in enumerate(self._readers)
            for birth, (blocks, nbytes) in reader.figures().lines.items()
        }
        for key, (_, nbytes) in found.items():
            self._most[key] = max(nbytes, self._most.get(key, 0))
        figures = {key: (*found.get(key, (0, 0)), most) for key, most in self._most.items()}

        def first(field: int) -> list[tuple[int, int]]:
            return nlargest(_LINES, figures, key=lambda key: (figures[key][field], figures[key][2]))

        # by any of which a view may sort
        shown = {*first(0), *first(1), *first(2)}
        rows = [self._row(key, *figures[key][:2]) for key in figures if key in shown]
        notes = [*self._notes, *(note for reader in self._readers for note in reader.notes())]
        if self._readers and not found:
            notes.insert(0, _NO_LINES)
        return LineTotals(
            seconds=time.monotonic() - self._start,
            rows=tuple(sorted(rows, key=lambda row: (row.nbytes, row.most), reverse=True)),
            notes=tuple(notes),
        )

    def _row(self, key: tuple[int, int], blocks: int, nbytes: int) -> LineTotal:
        reader, birth = self._readers[key[0]], key[1]
        line = reader.line(birth)
        text = place(line, function=True) if line is not None else ""
        return LineTotal(text, reader.device(birth), nbytes, self._most[key], blocks)

    def close(self) -> None:
        """Stop recording lines."""
        for reader in self._readers:
            with suppress(Exception):
                reader.close()


_TYPE_NAME = re.compile("<(?!lambda>)")


class Session:
    """A client's requests and their replies."""

    def __init__(self, steps: StepCounter) -> None:
        self._steps = steps
        self._levels = LevelReader()
        self._measures: tuple[MemReporter, LiveLines] | None = None
        """Made at the first request: from then on allocating lines are recorded."""

    def reply(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the reply to a request; an ``error`` if it fails."""
        try:
            found = self._answer(Ask(request["ask"]), request)
        except Exception as error:
            return {"version": VERSION, "error": reason(error)}
        return {"version": VERSION, **found}

    def close(self) -> None:
        """Stop measuring."""
        self._levels.close()
        if self._measures is not None:
            self._measures[1].close()

    def _answer(self, ask: Ask, request: Mapping[str, Any]) -> dict[str, Any]:
        # made here, so that an error becomes the reply
        self._measures = self._measures or (MemReporter(), LiveLines())
        reporter, lines = self._measures
        match ask:
            case Ask.LOOK:
                levels, of_lines = self._levels_now(), lines.totals()
                tensors = _tensor_totals(reporter) if request["census"] else None
                return asdict(Look(levels, of_lines, tensors))
            case Ask.SNAPSHOT:
                path = _checked(request["file"])
                return {"text": f"wrote {formats.save(reporter.snapshot(), path)}"}
            case Ask.RECORD:
                self._steps.record(int(request["steps"]), _checked(request["file"]))
                return {"text": self._steps.state()}

    def _levels_now(self) -> JobLevels:
        recording = self._steps.recording
        return JobLevels(
            command=printable(shlex.join([Path(sys.orig_argv[0]).name, *sys.orig_argv[1:]])),
            rank=str(ranks.current_rank() or ""),
            steps=self._steps.count,
            devices=tuple(self._levels.read()),
            notes=tuple(self._levels.notes()),
            recording=self._steps.state(),
            is_recording=recording is not None and recording.is_on,
        )


def _tensor_totals(reporter: MemReporter) -> TensorTotals:
    """Return the live tensors, largest first, and the bytes of each role."""
    start = time.perf_counter()
    snapshot = reporter.snapshot()
    taken = time.perf_counter() - start
    devices = [each for each in inventories(snapshot, View(top=_ROWS)) if each.is_memory]
    rows = [
        TensorTotal(
            # a tensor that only a library's frame holds is named by a type, <cell>: show no name
            name="" if _TYPE_NAME.match(row.name) else printable(row.name),
            count=row.count,
            role=row.first.role,
            device=each.device,
            shape=row.shape,
            nbytes=row.after,
        )
        for each in devices
        for row in each.rows
    ]
    rows.sort(key=lambda row: -row.nbytes)
    return TensorTotals(
        seconds=taken,
        count=sum(each.count for each in devices),
        roles=tuple(
            RoleTotal(each.device, role, nbytes)
            for each in devices
            for role, _, nbytes in each.roles
        ),
        rows=tuple(rows[:_ROWS]),
        notes=snapshot.notes,
    )


def _checked(file: str) -> Path:
    """Return a path after checking, before any work, that a report can be written to it.

    Raises:
        TensorlensError: its ending is not known, it exists, or its folder cannot be written to.
    """
    path = Path(file)
    formats.checked_ending(path)
    if os.path.lexists(path):
        raise TensorlensError(f"cannot write {path}: it exists")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise TensorlensError(f"cannot write {path}: its folder cannot be written to")
    return path


_IDLE_SECONDS = 60.0
"""Seconds after which a client that sends or reads nothing is disconnected."""
_RETRY_SECONDS = 1.0
"""Seconds between tries to accept if the process is out of descriptors."""


class Server:
    """Listens for clients; a process that is forked does not, and leaves the socket alone."""

    def __init__(self) -> None:
        self._listening: socket.socket | None = None
        self._path = Path()
        self._connections: set[Connection] = set()
        self._pid = os.getpid()
        self._steps = StepCounter()

    def start(self, follows_steps: bool) -> None:
        """Start serving; called again as more frameworks are imported, count their steps too.

        Raises:
            TensorlensError: there is no place for a socket.
            RuntimeError: no thread is left.
        """
        if os.getpid() != self._pid:
            return
        if self._listening is None:
            self._listening, self._path = listener()
            try:
                start_thread(self._accept)
            except RuntimeError:
                self.close()
                raise
            atexit.register(self.close)
            os.register_at_fork(after_in_child=self._forget)
        if follows_steps:
            for each in adapters():
                # made early: the counter must see every allocation for complete bytes
                each.cpu_counter()
                self._steps.follow(each)

    def close(self) -> None:
        """Write a recording that is on, and serve no more."""
        listening, self._listening = self._listening, None
        if listening is None:
            return
        with suppress(Exception):
            if self._steps.recording is not None:
                self._steps.recording.finish()
        with suppress(OSError):
            self._path.unlink()
        listening.close()

    def _forget(self) -> None:
        """Serve no more in a forked process: threads and clients are its parent's."""
        # a copy of the descriptor would keep the socket open when the parent is gone
        for each in (self._listening, *self._connections):
            with suppress(OSError):
                if each is not None:
                    each.close()
        self._listening = None
        self._connections.clear()
        self._steps.recording = None

    def _accept(self) -> None:
        while (listening := self._listening) is not None:
            try:
                connection = connection_of(listening.accept()[0], _IDLE_SECONDS)
            except OSError:
                # out of file descriptors, or the server was closed
                time.sleep(_RETRY_SECONDS)
                continue
            self._connections.add(connection)
            try:
                start_thread(self._answer, connection)
            except RuntimeError:
                # no thread is left: the client may call again
                self._connections.discard(connection)
                connection.close()

    def _answer(self, connection: Connection) -> None:
        # a client that is gone, or anything else: the program is to see nothing of it
        with suppress(Exception), connection:
            with suppress(Exception), closing(Session(self._steps)) as session:
                while True:
                    send(connection, session.reply(receive(connection)))
            # before it is closed: a child forked between would close its number, another file's
            self._connections.discard(connection)


@functools.cache
def server() -> Server:
    """Return the server of this process."""
    return Server()
