"""What JAX says when an allocation fails."""

from __future__ import annotations

import re

from tensorlens.records.failures import Request

_BYTES = re.compile(r"(?:allocate|allocating) (\d+) ?(?:bytes|B)\b")
_STATUS = "RESOURCE_EXHAUSTED"


def failed_request(error: BaseException) -> Request | None:
    """Return what was asked for when ``error`` is a failed allocation of XLA's, else None."""
    kind = type(error)
    if kind.__module__.partition(".")[0] not in ("jax", "jaxlib") or not error.args:
        return None
    text = error.args[0]
    if type(text) is not str or not text.startswith(_STATUS):
        return None
    size = _BYTES.search(text)
    line = " ".join(text.split("\n", 1)[0].split())[:300]
    return Request(None, None if size is None else int(size[1]), line)
