"""A running process as another sees it: ``TENSORLENS_LIVE=1`` there, ``tensorlens top`` here.

It listens on a Unix socket that its user alone can open, and on nothing else. It measures as
long as somebody watches.
"""

from __future__ import annotations

import functools
import os

from tensorlens import config
from tensorlens.lazy import attach

VARIABLE = "TENSORLENS_LIVE"


def asks_to_serve(value: str | None) -> bool:
    """Tell whether a value of :data:`VARIABLE` asks for a process that can be watched."""
    return bool(value and value.strip()) and config.is_on(value)


def prepare() -> None:
    """Serve from the import of a framework on, where the environment asks for it."""
    if asks_to_serve(os.environ.get(VARIABLE)):
        from tensorlens.frameworks.registry import when_any_imported

        when_any_imported(functools.partial(serve, follows_steps=True))


def serve(*, follows_steps: bool = False) -> None:
    """Serve this process, if it can be; a line on standard error says why it cannot.

    Args:
        follows_steps: count the steps of the program's optimizer, now and not only when somebody
            asks: hooks are not changed while the program runs through them.
    """
    from tensorlens.guards import is_from_a_handler, warn

    try:
        from tensorlens.live.server import server

        server().start(follows_steps)
    except Exception as error:
        if is_from_a_handler(error):
            raise
        warn("tensorlens top cannot watch this process", error)


attach(
    __name__,
    {
        "client": ("ServedProcess", "ProcessEnded", "SCRIPT", "serving"),
        "protocol": ("Ask",),
        "server": ("Session",),
        "steps": ("StepCounter",),
        "view": ("ProcessView",),
    },
)
