"""Serves this process to those who watch it, from threads of its own."""

from __future__ import annotations

import atexit
import functools
import os
import socket
import time
from contextlib import closing, suppress
from pathlib import Path

from tensorlens.frameworks.registry import adapters
from tensorlens.interpreter import start_thread
from tensorlens.live.addresses import listener
from tensorlens.live.protocol import Channel
from tensorlens.live.session import Session
from tensorlens.live.steps import StepCounter

_IDLE_SECONDS = 60.0
"""Seconds after which a client that asks or reads nothing is let go, with what it costs."""
_RETRY_SECONDS = 1.0
"""Seconds until the next try where the process has no file to open left."""


class Server:
    """Listens for clients; a process that is forked does not, and leaves the socket alone."""

    def __init__(self) -> None:
        self._listening: socket.socket | None = None
        self._path = Path()
        self._connections: set[socket.socket] = set()
        self._pid = os.getpid()
        self._steps: StepCounter | None = None

    def start(self, follows_steps: bool) -> None:
        """Serve, with the frameworks that are imported now; the second time take up the others.

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
            self._steps = self._steps or StepCounter()
            for each in adapters():
                # from the first allocation on, so that the bytes are all there are
                each.cpu_counter()
                self._steps.follow(each)

    def close(self) -> None:
        """Write a recording that is on, and serve no more."""
        listening, self._listening = self._listening, None
        if listening is None:
            return
        with suppress(Exception):
            if self._steps is not None and self._steps.recording is not None:
                self._steps.recording.finish()
        with suppress(OSError):
            self._path.unlink()
        listening.close()

    def _forget(self) -> None:
        """Be no server in a forked process, which has neither its threads nor its clients."""
        # a copy of the descriptor would keep the socket open when the parent is gone
        for each in (self._listening, *self._connections):
            if each is not None:
                with suppress(OSError):
                    # now, whoever reads from it
                    os.close(each.detach())
        self._listening = None
        self._connections.clear()
        if self._steps is not None:
            self._steps.recording = None

    def _accept(self) -> None:
        while (listening := self._listening) is not None:
            try:
                connection, _ = listening.accept()
            except OSError:
                # no file is left; or the end
                time.sleep(_RETRY_SECONDS)
                continue
            self._connections.add(connection)
            try:
                start_thread(self._answer, connection)
            except RuntimeError:
                # no thread is left: the client may call again
                self._connections.discard(connection)
                connection.close()

    def _answer(self, connection: socket.socket) -> None:
        # a client that is gone, or anything else: the program is to see nothing of it
        with suppress(Exception), closing(Channel(connection)) as channel:
            connection.settimeout(_IDLE_SECONDS)
            with closing(Session(self._steps)) as session:
                while (request := channel.receive()) is not None:
                    channel.send(session.reply(request))
        self._connections.discard(connection)


@functools.cache
def server() -> Server:
    """Return the server of this process."""
    return Server()
