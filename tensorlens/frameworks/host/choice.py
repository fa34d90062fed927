"""The counter of host memory that a framework has: the native one, or a fallback and why."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from tensorlens.errors import UsageError
from tensorlens.frameworks.base import Counter, Reader
from tensorlens.frameworks.host.allocator import NativeAllocator
from tensorlens.frameworks.host.process import forced_source, process_counter
from tensorlens.guards import is_from_a_handler, reason
from tensorlens.interpreter import reentrant_lock
from tensorlens.native.build import NativeUnavailable

_A = TypeVar("_A", bound=NativeAllocator)


class NativeCounter(Generic[_A]):
    """Counter of an allocator that is counted natively.

    Exact requested bytes, for the whole process: every thread, compiled code and graphs too.
    """

    device = "cpu"
    source: str
    precision = "exact bytes"

    def __init__(self, allocator: _A) -> None:
        self.allocator = allocator
        self.missing: Mapping[str, str] = {}
        if allocator.resident() < 0:
            self.missing = {"reserved": "this system does not tell the resident set"}
        self._read = allocator.read

    def reader(self) -> Reader:
        """Return a function that gives ``(allocated, peak, resident set)`` in bytes."""
        return self._read


class HostCounterChoice(Generic[_A]):
    """Chooses once, and remembers.

    Args:
        native: puts the native counter in place; it is tried until it was once unavailable, as a
            compiler that failed is not run again for every report.
    """

    def __init__(self, native: Callable[[], NativeCounter[_A]]) -> None:
        self._make_native = native
        # a signal handler may ask while its own thread is building
        self._lock = reentrant_lock()
        self._native: NativeCounter[_A] | None = None
        self._fallback: Counter | None = None
        self._reason: str | None = None

    def counter(self) -> Counter:
        """Return the best counter of host memory; the first call puts the native one in place.

        ``TENSORLENS_COUNTER=native|heap|resident`` asks for one of them.

        Raises:
            UsageError: it asks for one that does not exist or cannot be had here.
        """
        chosen = forced_source()
        if chosen in ("heap", "resident"):
            return process_counter()
        with self._lock:
            counter = self._native or self._try_native()
            if counter is not None:
                return counter
            if chosen == "native":
                raise UsageError(f"TENSORLENS_COUNTER=native: {self._reason}")
            if self._fallback is None:
                self._fallback = process_counter()
            return self._fallback

    def allocator(self) -> _A | None:
        """Return the allocator that is counted natively; None where a fallback counts.

        Raises:
            UsageError: as of :meth:`counter`.
        """
        counter = self.counter()
        return counter.allocator if isinstance(counter, NativeCounter) else None

    def recordable(self) -> _A:
        """Return the allocator that is counted natively.

        Raises:
            UsageError: as of :meth:`counter`.
            NativeUnavailable: a fallback counts.
        """
        allocator = self.allocator()
        if allocator is None:
            raise NativeUnavailable(
                f"host memory cannot be recorded: it is counted by {self.counter().source}"
                f" ({self.fallback_reason() or 'TENSORLENS_COUNTER asks for it'})"
            )
        return allocator

    def sizes(self, addresses: Iterable[int]) -> dict[int, int]:
        """Return the bytes of the block at each address, 0 where that is not known."""
        sizes = dict.fromkeys(addresses, 0)
        allocator = self.allocator()
        if allocator is None:
            return sizes
        _, blocks = allocator.sizes(array("Q", sizes))
        return {address: max(size, 0) for address, size in zip(sizes, blocks, strict=True)}

    def fallback_reason(self) -> str | None:
        """Return the one line that says why a fallback counts host memory, or None."""
        if self._native is not None or self._fallback is None or forced_source() is not None:
            return None
        return f"{self._reason}; CPU figures are from: {self._fallback.source}"

    def notes(self) -> list[str]:
        """Return that line for a report, where there is one."""
        line = self.fallback_reason()
        return [] if line is None else [line]

    def _try_native(self) -> NativeCounter[_A] | None:
        if self._reason is None:
            try:
                self._native = self._make_native()
            except NativeUnavailable as error:
                self._reason = str(error)
            except Exception as error:
                # this runs within the program's own calls: they go on with coarser figures
                if is_from_a_handler(error):
                    raise
                self._reason = f"the native CPU counter failed: {reason(error)}"
        return self._native
