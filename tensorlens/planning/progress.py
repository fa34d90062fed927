"""Progress of a search or a comparison: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from tqdm import tqdm

from tensorlens.streams import is_terminal

_MAX_TEXT = 24
_LINE_INTERVAL = 30.0
"""Seconds between two lines if there is no terminal."""

Done = Callable[[int | None, str], None]
"""Called with the number done (None: unchanged) and the name of what runs now."""
_shown: ContextVar[Done | None] = ContextVar("_shown", default=None)


@contextlib.contextmanager
def progress(name: str, unit: str, total: int | None = None) -> Iterator[Done]:
    """Show a bar on a terminal, otherwise a line on standard error now and then.

    Nested in another one it shows no second bar, but its text in the outer one.
    """
    outer = _shown.get()
    if outer is not None:
        yield lambda count, now: outer(None, now) if now else None
        return
    with contextlib.ExitStack() as stack:
        if is_terminal(sys.stderr):
            # any bar, even a disabled one, starts a thread of tqdm
            bar = stack.enter_context(tqdm(total=total, desc=name, unit=unit, leave=False))
            done = _on_bar(bar, name)
        else:
            done = _in_lines(name, unit, total)
        token = _shown.set(done)
        try:
            yield done
        finally:
            _shown.reset(token)


def _on_bar(bar: Any, name: str) -> Done:
    def done(count: int | None, now: str) -> None:
        if count is None:
            bar.set_postfix_str(_short(now))
            return
        bar.set_description_str(f"{name} {_short(now)}".rstrip(), False)
        bar.set_postfix_str("", False)
        bar.update(count - bar.n)
        bar.refresh()

    return done


def _in_lines(name: str, unit: str, total: int | None) -> Done:
    begin = last = time.monotonic()
    number, outer = 1, ""

    def done(count: int | None, now: str) -> None:
        nonlocal last, number, outer
        if count is not None:
            number, outer = count + 1, _short(now)
        if time.monotonic() - last < _LINE_INTERVAL:
            return
        last = time.monotonic()
        place = f"{unit} {number:,}" if total is None else f"{unit} {min(number, total)} of {total}"
        parts = [place, outer, "" if count is not None else _short(now)]
        text = ", ".join(filter(None, parts))
        # the program's own stream may be anything, or nothing
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"tensorlens: {name}: {text}, after {last - begin:.0f} s\n")
            sys.stderr.flush()

    return done


def _short(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()[:_MAX_TEXT]
