"""Reading peaks line by line without taking the user's own peak statistics away.

An allocator of torch keeps one peak, and whoever resets it resets it for everybody. A line
profiler has to reset it at every line, which would leave ``torch.cuda.max_memory_allocated()``,
``memory_stats()["*.peak"]``, ``memory_summary()`` and ``torch.accelerator.max_memory_allocated()``
with the peak of the last line. So every peak is folded into maxima of our own before each of our
resets, and the entry points on ``torch._C`` are replaced by wrappers that merge these maxima in.
They are what ``torch.cuda``, ``torch.xpu`` and ``torch.accelerator`` call, by
attribute and at every call (``torch/cuda/memory.py``, ``torch/accelerator/memory.py``, 2.13).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tensorlens.interpreter import reentrant_lock

Stats = dict[Any, Any]
Figures = Callable[[Stats], tuple[int, int, int]]
"""Takes ``(allocated, peak, reserved)``, in bytes, out of the nested statistics."""


class Statistics:
    """The statistics of one backend's allocator, shared between the profiler and the user.

    Args:
        c_module: ``torch._C``, or what stands in for it.
        query: the entry point that gives a device's nested statistics: ``_cuda_memoryStats``.
        reset: the one that resets its peaks: ``_cuda_resetPeakMemoryStats``.
        figures: takes our three figures out of the statistics.
        also: further ``(query, reset)`` entry points that reach the same allocator.
        also_applies: tells whether these reach this allocator, asked at each call.

    Two of them for the same entry points would each hide the other's resets: use :meth:`shared`.
    """

    def __init__(
        self,
        c_module: Any,
        query: str,
        reset: str,
        figures: Figures,
        *,
        also: Sequence[tuple[str, str]] = (),
        also_applies: Callable[[], bool] = lambda: True,
    ) -> None:
        self._c = c_module
        self._query = getattr(c_module, query)
        self._reset = getattr(c_module, reset)
        self._figures = figures
        self._pairs = [(query, reset), *also]
        self._also_applies = also_applies
        self._lock = reentrant_lock()
        self._maxima: dict[int, Stats] = {}
        self._cut_off: dict[int, int] = {}
        self._replaced: dict[str, tuple[Any, Any]] = {}

    @classmethod
    def shared(cls, c_module: Any, query: str, *args: Any, **options: Any) -> Statistics:
        """Return the one already installed behind ``query``, or a new one."""
        owner = getattr(getattr(c_module, query), "__tensorlens__", None)
        return owner if owner is not None else cls(c_module, query, *args, **options)

    def figures(self, index: int) -> tuple[int, int, int]:
        """Return ``(allocated, peak, reserved)`` as torch itself keeps them; reset nothing."""
        return self._figures(self._query(index))

    def read(self, index: int) -> tuple[int, int, int]:
        """Return ``(allocated, peak since the previous read, reserved)`` of a device in bytes.

        An allocation that another thread makes and frees between the two calls below, some
        microseconds, is in no peak: torch cannot read and reset in one call.

        Raises:
            Exception: whatever torch raises; nothing is lost by it.
        """
        with self._lock:
            stats = self._query(index)
            allocated, peak, reserved = self._figures(stats)
            if peak > allocated:
                # without an excess the peak already equals what a reset would set it to
                self._fold(self._maxima.setdefault(index, {}), stats)
                self._reset(index)
            # an interval that the user's own reset cut in two has its first half here
            return allocated, max(peak, self._cut_off.pop(index, 0)), reserved

    def install(self) -> None:
        """Replace the entry points by the wrappers; again changes nothing."""
        with self._lock:
            if self._replaced:
                return
            for position, (query, reset) in enumerate(self._pairs):
                applies = self._also_applies if position else None
                self._replace(query, self._merging, applies)
                self._replace(reset, self._clearing, applies)

    def _replace(self, name: str, make: Any, applies: Callable[[], bool] | None) -> None:
        original = getattr(self._c, name, None)
        if original is None:
            return
        wrapper = make(original, applies)
        functools.update_wrapper(wrapper, original)
        wrapper.__tensorlens__ = self
        # torch.compile then breaks the graph here, as it does at the C function, and does not
        # look inside (torch/_dynamo/decorators.py sets the same mark)
        wrapper._torchdynamo_disable = True
        self._replaced[name] = (wrapper, original)
        setattr(self._c, name, wrapper)

    def _merging(self, original: Any, applies: Callable[[], bool] | None) -> Any:
        def query(device: int, /) -> Any:
            with self._lock:
                stats = original(device)
                if self._maxima and (applies is None or applies()):
                    maxima = self._maxima.get(device)
                    if maxima:
                        self._merge(stats, maxima)
                return stats

        return query

    def _clearing(self, original: Any, applies: Callable[[], bool] | None) -> Any:
        def reset(device: int, /) -> Any:
            with self._lock:
                if applies is None or applies():
                    self._keep_interval(device)
                    result = original(device)
                    self._maxima.pop(device, None)
                    return result
                return original(device)

        return reset

    def _keep_interval(self, device: int) -> None:
        try:
            _, peak, _ = self._figures(self._query(device))
        except Exception:  # the user's reset is about to say it in torch's own words
            return
        self._cut_off[device] = max(peak, self._cut_off.get(device, 0))

    def _fold(self, maxima: Stats, stats: Stats) -> None:
        for key, value in stats.items():
            if value.__class__ is not dict:
                continue
            peak = value.get("peak")
            if peak is None:
                self._fold(maxima.setdefault(key, {}), value)
            elif peak > maxima.get(key, -1):
                maxima[key] = peak

    def _merge(self, stats: Stats, maxima: Stats) -> None:
        for key, value in stats.items():
            folded = maxima.get(key)
            if folded is None or value.__class__ is not dict:
                continue
            if folded.__class__ is dict:
                self._merge(value, folded)
            elif folded > value["peak"]:
                value["peak"] = folded
