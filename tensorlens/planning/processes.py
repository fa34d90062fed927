"""A process of its own for a program, seen from the one that asks."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorlens.folders import scratch_file

_COMMAND = """
import sys
from importlib import import_module
module, folder = sys.argv.pop(), sys.argv.pop()
sys.path.insert(0, folder)
import_module(module).serve()
"""
_LAST = 2000
"""Bytes of what a process wrote that are told when it ends by itself."""
_FOLDER = Path(__file__).parents[2]
"""Where this package lies."""


def interpreter() -> Sequence[str]:
    """Return the command of a fresh interpreter."""
    return (sys.executable,)


class ChildEnded(Exception):
    """The process is over and has not answered."""


class Child:
    """A process that answers requests, which are pickled, until nobody asks any more.

    Args:
        server: a module whose ``serve()`` reads requests from standard input and writes answers
            to standard output.
        environment: variables that it has besides ours.
        is_apart: Ctrl-C in a terminal does not reach it: whoever asks ends it.
    """

    def __init__(
        self, server: str, environment: Mapping[str, str], *, is_apart: bool = False
    ) -> None:
        # not a pipe, which would stop a program that writes much and that nobody reads
        self._written = scratch_file()
        self._process = subprocess.Popen(
            [*interpreter(), "-c", _COMMAND, str(_FOLDER), server],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._written,
            env={**os.environ, **environment},
            start_new_session=is_apart,
        )
        self._begin = 0
        """Where in what it wrote the request that runs began."""

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def ask(self, request: bytes) -> None:
        """Send a request.

        Raises:
            ChildEnded: nobody is there any more.
        """
        assert self._process.stdin is not None
        self._begin = self._written.seek(0, os.SEEK_END)
        try:
            self._process.stdin.write(request)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ChildEnded from None

    def answer(self) -> Any:
        """Return the next answer.

        Raises:
            ChildEnded: there will be none.
        """
        assert self._process.stdout is not None
        try:
            return pickle.load(self._process.stdout)
        except (EOFError, pickle.UnpicklingError):
            raise ChildEnded from None

    def code(self) -> int:
        """Wait for its end and return its exit code."""
        return self._process.wait()

    def last_words(self) -> str:
        """Return the last that was written during the request."""
        size = self._written.seek(0, os.SEEK_END)
        self._written.seek(max(size - _LAST, self._begin))
        return self._written.read().decode("utf-8", "replace").strip()

    def close(self) -> None:
        """Let it end, and wait for that."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._written.close()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self.close()


def kill_group(pid: int) -> None:
    """End a process and all that it has started."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGTERM)
