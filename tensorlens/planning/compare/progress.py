"""A bar for trials."""

from __future__ import annotations

import sys
from types import TracebackType

from tqdm import tqdm

_DELAY = 1.0


class Bar:
    """Shows on a terminal how many trials are done."""

    def __init__(self, trials: int) -> None:
        self._bar = tqdm(
            total=trials,
            desc="compare",
            unit="trial",
            delay=_DELAY,
            leave=False,
            disable=not sys.stderr.isatty(),
        )

    def done(self, name: str) -> None:
        """Say that one more is done, and of which option."""
        self._bar.set_postfix_str(name.encode("ascii", "backslashreplace").decode()[:24], False)
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
