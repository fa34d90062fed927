"""Recurrent layers as Python runs them: step by step, with no loop in the graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def unrolled(model: Any) -> Iterator[None]:
    """Let recurrent layers of a model write out all their steps while it is entered."""
    rolled = [each for each in model._flatten_layers() if getattr(each, "unroll", None) is False]
    for each in rolled:
        each.unroll = True
    try:
        yield
    finally:
        for each in rolled:
            each.unroll = False
