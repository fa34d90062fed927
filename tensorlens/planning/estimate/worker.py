"""The process that programs run in for estimates: none of them touches a device that is there."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from types import TracebackType

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.frameworks.trials.protocol import Answer, Failure, Job, Progress
from tensorlens.planning.processes import Child, ChildEnded
from tensorlens.records.traces import Trace

_SERVER = "tensorlens.frameworks.fake_torch.child"
_HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}


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
        self._child: Child | None = None

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
        child = self._child = self._child or Child(_SERVER, _HIDDEN)
        try:
            child.ask(request)
            while True:
                answer: Answer = child.answer()
                if isinstance(answer, Progress):
                    progress(answer.steps_done)
                elif isinstance(answer, Failure):
                    raise UsageError(answer.text) if answer.is_usage else ProgramFailed(answer)
                else:
                    return answer
        except ChildEnded:
            text = f"the process of the program ended (exit code {child.code()})"
            failure = Failure(text, child.last_words())
            self._close()
            raise ProgramFailed(failure) from None

    def _close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None and self._child is not None:
            self._child.kill()
            self._child = None
        self._close()
