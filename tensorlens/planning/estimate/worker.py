"""The process that programs run in, seen from the one that asks."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.folders import scratch_file
from tensorlens.frameworks.torch.fake.jobs import Answer, Failure, Job, Progress
from tensorlens.records.traces import Trace

_HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}
"""Set in the process: it must not touch a device that is there."""
_COMMAND = """
import sys
sys.path.insert(0, sys.argv.pop())
from tensorlens.frameworks.torch.fake.child import serve
serve()
"""
_LAST = 2000
"""Bytes of what a process wrote that are told when it ends by itself."""


def interpreter() -> Sequence[str]:
    """Return the command of a fresh interpreter."""
    return (sys.executable,)


class ProgramFailed(TensorlensError):
    """The program raised an error on its way."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.details = failure.details
        """The program's own traceback, and what it wrote last."""
        if failure.details:
            self.add_note(failure.details)


class Worker:
    """A process for runs, from ``with`` to its end; it starts with the first run."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, job: Job, progress: Callable[[int], None]) -> Trace:
        """Return what a program asks of allocators.

        Args:
            job: what to run.
            progress: called with the number of steps done.

        Raises:
            UsageError: the program is none that makes steps, or its arguments cannot be pickled.
            ProgramFailed: the program raised an error, or it ended the process.
        """
        try:
            request = pickle.dumps(job, protocol=5)
        except Exception as error:
            raise UsageError(f"the arguments cannot go to another process: {error}") from None
        if self._process is None:
            self._start()
        try:
            self._jobs.write(request)
            self._jobs.flush()
            while True:
                answer: Answer = pickle.load(self._answers)
                if isinstance(answer, Progress):
                    progress(answer.steps_done)
                elif isinstance(answer, Failure):
                    raise UsageError(answer.text) if answer.is_usage else ProgramFailed(answer)
                else:
                    return answer
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            raise ProgramFailed(self._ended()) from None

    def _start(self) -> None:
        folder = str(Path(__file__).parents[2])
        # not a pipe, which would stop a program that writes much and that nobody reads
        self._written = scratch_file()
        self._process = subprocess.Popen(
            [*interpreter(), "-c", _COMMAND, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._written,
            env={**os.environ, **_HIDDEN},
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._jobs, self._answers = self._process.stdin, self._process.stdout

    def _ended(self) -> Failure:
        assert self._process is not None
        code = self._process.wait()
        size = self._written.seek(0, os.SEEK_END)
        self._written.seek(max(size - _LAST, 0))
        last = self._written.read().decode("utf-8", "replace").strip()
        self._close()
        return Failure(f"the process of the program ended (exit code {code})", last)

    def _close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(BrokenPipeError):
                self._jobs.close()
            process.wait()
            self._answers.close()
            self._written.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None and self._process is not None:
            self._process.kill()
        self._close()
