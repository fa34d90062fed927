"""Limits of this process that an allocation on the CPU can meet."""

from __future__ import annotations

import sys


def address_limit() -> int | None:
    """Return how many bytes of addresses the process may have; None where there is no limit."""
    if sys.platform == "win32":
        return None
    import resource

    found = [
        soft
        for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)
        for soft in resource.getrlimit(kind)[:1]
        if soft != resource.RLIM_INFINITY and 0 < soft < 1 << 60
    ]
    return min(found, default=None)
