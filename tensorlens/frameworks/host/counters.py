"""Counters of host memory: the native one, or a fallback and why.

If no allocator can be counted natively, the C heap's figures are used, or else the resident set.
Each counter states its precision.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from tensorlens.errors import UsageError
from tensorlens.frameworks.base import UNKNOWN, Counter, Reader
from tensorlens.frameworks.host.allocator import NativeAllocator
from tensorlens.frameworks.host.process_memory import mallinfo2_function, resident
from tensorlens.guards import is_from_a_handler, reason
from tensorlens.interpreter import reentrant_lock
from tensorlens.native.build import NativeUnavailable

_A = TypeVar("_A", bound=NativeAllocator)
SOURCES = ("native", "heap", "resident")
"""Values of ``TENSORLENS_COUNTER``, best first."""


class HostCounterChoice(Generic[_A]):
    """Choice of the counter of host memory, made once.

    Args:
        install: installs the native counter; not called again after a failure, so that a broken
            compiler does not run for every report.
    """

    def __init__(self, install: Callable[[], _A]) -> None:
        self._install = install
        # a signal handler may ask while its own thread is building
        self._lock = reentrant_lock()
        self._native: _A | None = None
        self._fallbacks: dict[str | None, Counter] = {}
        """Value of ``TENSORLENS_COUNTER``, None if not set, to the counter that is used."""
        self._reason: str | None = None

    def counter(self) -> Counter:
        """Return the best counter of host memory; the first call installs the native one.

        ``TENSORLENS_COUNTER=native|heap|resident`` asks for one of them.

        Raises:
            UsageError: it asks for one that does not exist or is not available here.
        """
        chosen = forced_source()
        with self._lock:
            if chosen not in ("heap", "resident"):
                counter = self._native or self._try_native()
                if counter is not None:
                    return counter
                if chosen == "native":
                    raise UsageError(f"TENSORLENS_COUNTER=native: {self._reason}")
            if chosen not in self._fallbacks:
                self._fallbacks[chosen] = process_counter()
            return self._fallbacks[chosen]

    def allocator(self) -> _A | None:
        """Return the allocator that is counted natively; None if a fallback counts.

        Raises:
            UsageError: as of :meth:`counter`.
        """
        return self._native if self.counter() is self._native else None

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
        """Return the bytes of the block at each address, 0 if unknown."""
        allocator, known = self.allocator(), {}
        if allocator is not None:
            blocks = allocator.living()
            known = dict(zip(blocks.address, blocks.size, strict=True))
        return {address: known.get(address, 0) for address in addresses}

    def fallback_reason(self) -> str | None:
        """Return why a fallback that nobody asked for counts host memory, in one line, or None."""
        fallback = self._fallbacks.get(None)
        if self._native is not None or fallback is None or forced_source() is not None:
            return None
        return f"{self._reason}; CPU figures are from: {fallback.source}"

    def notes(self) -> list[str]:
        """Return the fallback reason as notes of a report."""
        line = self.fallback_reason()
        return [] if line is None else [line]

    def _try_native(self) -> _A | None:
        if self._reason is None:
            try:
                self._native = self._install()
            except NativeUnavailable as error:
                self._reason = str(error)
            except Exception as error:
                # the program's call must go on, with coarser figures
                if is_from_a_handler(error):
                    raise
                self._reason = f"the native CPU counter failed: {reason(error)}"
        return self._native


def forced_source() -> str | None:
    """Return the source that ``TENSORLENS_COUNTER`` asks for, or None when it asks for none.

    Raises:
        UsageError: its value is no source.
    """
    chosen = os.environ.get("TENSORLENS_COUNTER", "").strip().lower()
    if not chosen:
        return None
    if chosen not in SOURCES:
        raise UsageError(f"TENSORLENS_COUNTER={chosen}: choose one of {', '.join(SOURCES)}")
    return chosen


def process_counter() -> Counter:
    """Return the counter of the C heap, or of the resident set if this system has no such heap.

    Raises:
        UsageError: ``TENSORLENS_COUNTER`` asks for one that is not available.
    """
    chosen = forced_source()
    if chosen != "resident":
        try:
            return HeapCounter()
        except OSError as error:
            if chosen == "heap":
                raise UsageError(f"TENSORLENS_COUNTER=heap: {error}") from None
    return ResidentCounter()


class HeapCounter:
    """The C heap in use, from glibc's ``mallinfo2()`` (2.33 and later): every arena's and mmaps'.

    It counts all C memory of the process, not only torch's, with malloc's rounding and per-thread
    caches. A read walks the free chunks: half a microsecond in a tidy heap, hundreds of
    microseconds in one with a hundred thousand holes.
    """

    device = "cpu"
    source = "C heap (glibc mallinfo2)"
    precision = "the whole process's heap, rounded up by malloc; within about 0.05 % once warm"
    missing: Mapping[str, str] = {"peak": "the C heap keeps no peak"}

    def __init__(self) -> None:
        """Find ``mallinfo2``.

        Raises:
            OSError: this C library does not have it.
        """
        self._mallinfo = mallinfo2_function()

    def in_use(self) -> int:
        """Return the bytes of the heap in use."""
        heap = self._mallinfo()
        return int(heap.uordblks + heap.hblkhd)

    def reader(self) -> Reader:
        """Return a function that gives ``(heap in use, UNKNOWN, resident set)`` in bytes."""
        return lambda: (self.in_use(), UNKNOWN, resident())


class ResidentCounter:
    """The resident set: all pages of the process that were touched."""

    device = "cpu"
    source = "resident set"
    precision = "the whole process in pages; memory counts when touched, and may stay when freed"
    missing: Mapping[str, str] = {"peak": "the kernel's peak is that of the whole run"}

    def reader(self) -> Reader:
        """Return a function that gives ``(resident, UNKNOWN, resident)`` in bytes."""

        def read() -> tuple[int, int, int]:
            now = resident()
            return now, UNKNOWN, now

        return read
