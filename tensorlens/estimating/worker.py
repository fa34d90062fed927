"""The process that programs run in, seen from the one that asks."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.frameworks.torch.fake.jobs import Answer, Failure, Job, Progress
from tensorlens.records.traces import Trace

_HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}
"""Set in the process: it must not touch a device that is there."""
_COMMAND = """
import sys
sys.path.insert(0, sys.argv[1])
from tensorlens.frameworks.torch.fake.child import serve
serve(int(sys.argv[2]), int(sys.argv[3]))
"""


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
            UsageError: the program is none that makes steps.
            ProgramFailed: the program raised an error, or it ended the process.
        """
        if self._process is None:
            self._start()
        try:
            pickle.dump(job, self._jobs, protocol=5)
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
        jobs, self_jobs = os.pipe()
        self_answers, answers = os.pipe()
        folder = str(Path(__file__).parents[2])
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _COMMAND, folder, str(jobs), str(answers)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(jobs, answers),
                env={**os.environ, **_HIDDEN},
            )
        finally:
            os.close(jobs)
            os.close(answers)
        self._jobs = os.fdopen(self_jobs, "wb")
        self._answers = os.fdopen(self_answers, "rb")

    def _ended(self) -> Failure:
        assert self._process is not None
        _, errors = self._process.communicate()
        code, self._process = self._process.returncode, None
        last = errors.decode("utf-8", "replace").strip()
        return Failure(f"the process of the program ended (exit code {code})", last[-2000:])

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        self._jobs.close()
        if kind is not None:
            process.kill()
        process.communicate()
        self._answers.close()
