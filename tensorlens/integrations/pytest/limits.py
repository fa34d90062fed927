"""Limits on the tensors of a test: its markers, and the watchers of the test.

It imports no framework, and the rest of tensorlens only where a test is watched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from tensorlens.errors import TensorlensError
from tensorlens.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from tensorlens.integrations.pytest.assertions import Peaks
    from tensorlens.leaks.scope import AllocationScope, LineResidue

_DEVICE = re.compile(r"[a-z]+(:\d+)?")


@dataclass(slots=True)
class Limits:
    """Limits of a test, and their watchers."""

    leaks: int | None = None
    """Bytes of tensors made in the test that may outlive it."""
    memory: int | None = None
    """Bytes that may be allocated at once, above the level before."""
    device: str | None = None
    scope: AllocationScope | None = None
    peaks: Peaks | None = None
    refused: list[str] = field(default_factory=list)
    """Reasons why something could not be watched."""

    def watch(self) -> Callable[[], None]:
        """Start watching if a framework is imported; return a function that stops."""
        from tensorlens.frameworks.registry import adapters, imported_since
        from tensorlens.integrations.pytest.assertions import Peaks
        from tensorlens.leaks.scope import AllocationScope

        watched = adapters()

        def begin() -> None:
            if self.memory is not None and watched:
                self.peaks = Peaks(self.device)
            if self.leaks is not None and watched:
                self.scope = AllocationScope()

        def stop() -> None:
            self.refused += (f"the test itself imported {name}" for name in imported_since(watched))
            if self.peaks is not None:
                self.peaks.end()
                self.refused += self.peaks.unknown.values()
            if self.scope is not None:
                self.scope.end()

        self.safely(begin)
        return lambda: self.safely(stop)

    def safely(self, act: Callable[[], None]) -> None:
        """Call ``act`` and note a failure of ours, which must not replace the test's exception."""
        from tensorlens.guards import is_from_a_handler

        try:
            act()
        except Exception as error:
            if is_from_a_handler(error):
                raise
            self.refused.append(str(error) or type(error).__name__)


def limits_of(item: pytest.Item, leaks: pytest.Mark | None, memory: pytest.Mark | None) -> Limits:
    """Return the limits in a test's markers.

    Raises:
        pytest.UsageError: a marker has invalid arguments.
    """
    limits = Limits()
    if leaks is not None:
        limits.leaks = _size(item, leaks, ())
    if memory is not None:
        limits.memory = _size(item, memory, ("device",))
        limits.device = _device(item, memory)
    return limits


def _size(item: pytest.Item, mark: pytest.Mark, options: Sequence[str]) -> int:
    unknown = next((name for name in mark.kwargs if name not in options), None)
    if unknown is not None:
        raise _refused(item, mark, f"unknown argument {unknown!r}")
    if len(mark.args) != 1:
        raise _refused(item, mark, f'it takes one size, as in {mark.name}("64 MiB")')
    (given,) = mark.args
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise _refused(item, mark, f"{given!r} is not a size: write for example '64 MiB'")
    try:
        size = parse_bytes(given)
    except TensorlensError as error:
        raise _refused(item, mark, str(error)) from None
    if size < 0:
        raise _refused(item, mark, f"{given!r} is not a size: it is negative")
    return size


def _device(item: pytest.Item, mark: pytest.Mark) -> str | None:
    device = mark.kwargs.get("device")
    if device is None:
        return None
    if not isinstance(device, str) or _DEVICE.fullmatch(device) is None:
        raise _refused(item, mark, f"{device!r} is no device: write for example 'cuda:0'")
    return device


def _refused(item: pytest.Item, mark: pytest.Mark, text: str) -> pytest.UsageError:
    return pytest.UsageError(f"{item.nodeid}: {mark.name}: {' '.join(text.split())}")


def excess_text(remains: Sequence[LineResidue], limit: int) -> str:
    """Return the message on tensors that outlive a test above its limit."""
    from tensorlens.integrations.pytest.assertions import remains_text

    total = format_bytes(sum(each.nbytes for each in remains))
    head = f"{total} of tensors outlive the test, its limit is {format_bytes(limit)}"
    return "\n".join([head, *(line for each in remains for line in remains_text(each))])
