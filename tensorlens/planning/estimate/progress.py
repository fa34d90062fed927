"""A bar for runs that take longer than a second."""

from __future__ import annotations

import sys
from types import TracebackType

from tqdm import tqdm

_DELAY = 1.0


class Bar:
    """Shows on a terminal how many steps are done."""

    def __init__(self, name: str, steps: int) -> None:
        self._bar = tqdm(
            total=steps,
            desc=name,
            unit="step",
            delay=_DELAY,
            leave=False,
            disable=not sys.stderr.isatty(),
        )

    def done(self, steps: int) -> None:
        """Say that so many steps are done."""
        self._bar.update(steps - self._bar.n)

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.close()
