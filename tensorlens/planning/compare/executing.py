"""Work handed to an executor, wherever it runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, as_completed
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.frameworks.trials.jobs import Reason, Trouble

Work = tuple[Callable[[Any], Any], Any]
"""A function that can be imported anywhere, and its argument."""


def results(work: Sequence[Work], executor: Executor) -> Iterator[tuple[int, Any]]:
    """Give the results as they come, each with its place in ``work``.

    What fails on the way to another machine, or breaks the executor, is a :class:`Trouble`.

    Raises:
        UsageError: an executor that is none, or an argument that makes no sense.
    """
    if not hasattr(executor, "submit"):
        raise UsageError(
            f"executor is a {type(executor).__name__}: give a concurrent.futures.Executor"
        )
    futures: dict[Future[Any], int] = {}
    try:
        for place, (function, argument) in enumerate(work):
            futures[executor.submit(function, argument)] = place
        for future in as_completed(futures):
            yield futures[future], _result(future)
    finally:
        for future in futures:
            future.cancel()


def _result(future: Future[Any]) -> Any:
    try:
        return future.result()
    except UsageError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        return Trouble(Reason.FAILED, f"the executor failed: {type(error).__name__}: {reason}")
