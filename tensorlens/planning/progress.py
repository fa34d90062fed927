"""A bar for what takes longer than a second."""

from __future__ import annotations

import sys
from types import TracebackType

from tqdm import tqdm

_DELAY = 1.0
_LONGEST = 24


class Bar:
    """Shows on a terminal how much is done."""

    def __init__(self, name: str, total: int, unit: str) -> None:
        self._bar = tqdm(
            total=total,
            desc=name,
            unit=unit,
            delay=_DELAY,
            leave=False,
            disable=not sys.stderr.isatty(),
        )

    def done(self, count: int) -> None:
        """Say that so many are done."""
        self._bar.update(count - self._bar.n)

    def one_more(self, name: str) -> None:
        """Say that one more is done, and which."""
        self._bar.set_postfix_str(
            name.encode("ascii", "backslashreplace").decode()[:_LONGEST], False
        )
        self._bar.update()

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.close()
