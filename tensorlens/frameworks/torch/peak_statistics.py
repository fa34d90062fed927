"""Peaks line by line, with the user's own peak statistics intact.

An allocator of torch has one peak, which a reset clears for everybody. A line profiler resets it
at every line; ``torch.cuda.max_memory_allocated()``, ``memory_stats()["*.peak"]``,
``memory_summary()`` and ``torch.accelerator.max_memory_allocated()`` would have the peak of the
last line. So we add each peak to maxima of our own before we reset it, and replace the entry points
on ``torch._C`` by wrappers that merge these maxima in. ``torch.cuda``, ``torch.xpu`` and
``torch.accelerator`` look them up at every call (``torch/cuda/memory.py``,
``torch/accelerator/memory.py``, 2.13).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tensorlens.interpreter import reentrant_lock

Stats = dict[Any, Any]


class PeakStatistics:
    """Statistics of one backend's allocator, shared between the profiler and the user.

    Args:
        c_module: ``torch._C``, or a test's stand-in.
        own: the entry points that return a device's nested statistics and reset its peaks:
            ``_cuda_memoryStats``, ``_cuda_resetPeakMemoryStats``.
        also: two others that reach the same allocator whenever ``applies`` returns True.

    Two objects with the same entry points would hide each other's resets: use :meth:`shared`.
    """

    def __init__(
        self,
        c_module: Any,
        own: tuple[str, str],
        *,
        also: tuple[str, str] | None = None,
        applies: Callable[[], bool] = lambda: True,
    ) -> None:
        self._c = c_module
        self._own, self._also, self._applies = own, also, applies
        self._query, self._reset = (getattr(c_module, name) for name in own)
        self._lock = reentrant_lock()
        self._maxima: dict[int, Stats] = {}
        self._peak_before_reset: dict[int, int] = {}
        self._is_installed = False

    @classmethod
    def shared(cls, c_module: Any, own: tuple[str, str], **options: Any) -> PeakStatistics:
        """Return the object already installed behind ``own``, or a new one."""
        owner = getattr(getattr(c_module, own[0]), "__tensorlens__", None)
        return owner if owner is not None else cls(c_module, own, **options)

    def figures(self, index: int) -> tuple[int, int, int]:
        """Return ``(allocated, peak, reserved)`` as torch has them, without a reset."""
        return _figures(self._query(index))

    def read(self, index: int) -> tuple[int, int, int]:
        """Return ``(allocated, peak since the previous read, reserved)`` of a device in bytes.

        A block that another thread allocates and frees between the two calls below, within
        microseconds, is in no peak: torch cannot read and reset in one call.

        Raises:
            Exception: whatever torch raises; no peak is lost.
        """
        with self._lock:
            stats = self._query(index)
            allocated, peak, reserved = _figures(stats)
            # otherwise a reset would not change this peak
            if peak > allocated:
                self._add_peaks(self._maxima.setdefault(index, {}), stats)
                self._reset(index)
            # a reset by the user since the previous read hid the peak before it
            return allocated, max(peak, self._peak_before_reset.pop(index, 0)), reserved

    def install(self) -> None:
        """Replace the entry points by the wrappers; further calls do nothing."""
        with self._lock:
            if self._is_installed:
                return
            self._is_installed = True
            self._replace(self._own, lambda: True)
            if self._also is not None:
                self._replace(self._also, self._applies)

    def _replace(self, names: tuple[str, str], applies: Callable[[], bool]) -> None:
        for name, wrap in zip(names, (self._merging_query, self._clearing_reset), strict=True):
            original = getattr(self._c, name, None)
            if original is not None:
                wrapper: Any = functools.update_wrapper(wrap(original, applies), original)
                wrapper.__tensorlens__ = self
                # torch.compile breaks the graph here, as at the C function, and does not look
                # inside (torch/_dynamo/decorators.py sets the same mark)
                wrapper._torchdynamo_disable = True
                setattr(self._c, name, wrapper)

    def _merging_query(self, original: Any, applies: Callable[[], bool]) -> Any:
        def query(device: int, /) -> Any:
            with self._lock:
                stats = original(device)
                maxima = self._maxima.get(device)
                if maxima and applies():
                    self._merge_peaks(stats, maxima)
                return stats

        return query

    def _clearing_reset(self, original: Any, applies: Callable[[], bool]) -> Any:
        def reset(device: int, /) -> Any:
            with self._lock:
                if not applies():
                    return original(device)
                self._keep_peak(device)
                result = original(device)
                self._maxima.pop(device, None)
                return result

        return reset

    def _keep_peak(self, device: int) -> None:
        try:
            _, peak, _ = _figures(self._query(device))
        except Exception:  # the user's reset is about to raise it
            return
        self._peak_before_reset[device] = max(peak, self._peak_before_reset.get(device, 0))

    def _add_peaks(self, maxima: Stats, stats: Stats) -> None:
        for key, value in stats.items():
            if value.__class__ is not dict:
                continue
            peak = value.get("peak")
            if peak is None:
                self._add_peaks(maxima.setdefault(key, {}), value)
            elif peak > maxima.get(key, -1):
                maxima[key] = peak

    def _merge_peaks(self, stats: Stats, maxima: Stats) -> None:
        for key, value in stats.items():
            maximum = maxima.get(key)
            if maximum is None or value.__class__ is not dict:
                continue
            if maximum.__class__ is dict:
                self._merge_peaks(value, maximum)
            elif maximum > value["peak"]:
                value["peak"] = maximum


def _figures(stats: Stats) -> tuple[int, int, int]:
    allocated = stats["allocated_bytes"]["all"]
    return allocated["current"], allocated["peak"], stats["reserved_bytes"]["all"]["current"]
