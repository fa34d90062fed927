"""Attributes replaced for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

_absent = object()


@contextlib.contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an attribute of a class or module another value while it is entered."""
    before = vars(owner).get(name, _absent)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _absent:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
