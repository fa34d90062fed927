"""torch's accelerator backends: what tells their state, and what counts their bytes.

Nothing here initialises a device: before a backend is ready only NVML, amdsmi and Level Zero
Sysman are asked, which torch itself uses to leave a later fork unharmed. Rules were read in
torch 2.13 unless a comment names another version.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorlens.frameworks.base import UNKNOWN
from tensorlens.frameworks.torch.native.allocator_levels import AllocatorLevels
from tensorlens.frameworks.torch.peak_statistics import Statistics, Stats
from tensorlens.native.build import NativeUnavailable

# c10/core/AllocatorConfig.h: kMinBlockSize; a block of the large pool is split only when more
# than 1 MiB of it would be left (c10/cuda/CUDACachingAllocator.cpp), so a figure can exceed the
# request by more than the rounding
_ROUNDED = "exact as torch rounds: multiples of 512 B"


class Backend:
    """One backend of this torch build; ``index`` is a device's number in it."""

    name = ""
    aliases: tuple[str, ...] = ()
    """Other names that messages of failed allocations have for it."""
    device_type = 0
    """Its number in ``c10/core/DeviceType.h``."""
    is_numbered = True
    """Whether its devices are told apart by a number: ``cuda:0``."""
    lists_blocks = False
    """Whether its allocator lists its blocks."""
    build = "another build"
    """Build or machine that has it."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.module = getattr(torch, self.name)
        self.missing: dict[str, str] = {}
        self.statistics: Statistics | None = None
        self._levels: AllocatorLevels | None = None

    @classmethod
    def is_built(cls, torch: Any) -> bool:
        """Tell whether this torch was built with the backend."""
        raise NotImplementedError

    def describe(self) -> tuple[str, str]:
        """Return what counts the bytes and how exact it is, for the report's header."""
        raise NotImplementedError

    @classmethod
    def spell(cls, index: int) -> str:
        """Return torch's name of a device."""
        return f"{cls.name}:{index}" if cls.is_numbered else cls.name

    def ready(self) -> bool:
        """Tell whether the program has initialised the backend, in this very process."""
        return bool(self.module.is_initialized())

    def forked(self) -> bool:
        """Tell whether the backend was initialised before a fork and is dead in this child."""
        return bool(self.module._is_in_bad_fork())

    def count(self) -> int:
        """Return how many devices there are; asked only when ready."""
        return int(self.module.device_count())

    def visible(self) -> int | None:
        """Return how many devices there are, or None where only initialising would tell."""
        if self.ready():
            return self.count()
        discover = getattr(self.module, self._discovery(), None)
        if discover is None:
            return None
        with warnings.catch_warnings():
            # "Can't initialize NVML" is an answer here, not news for the user
            warnings.simplefilter("ignore")
            found = int(discover())
        return None if found < 0 else found

    def _discovery(self) -> str:
        return ""

    def current(self) -> int:
        """Return the index that the bare backend name stands for."""
        return 0

    def in_use(self, index: int) -> bool:
        """Tell whether the device was used so far; asked only when ready.

        Where torch has no test of use, a device counts from its first allocation on.
        """
        assert self.statistics is not None
        return any(figure > 0 for figure in self.statistics.figures(index))

    def reports_blocks(self) -> bool:
        """Tell whether its allocator reports each block to torch as it comes and goes."""
        return self.lists_blocks

    def read(self, index: int) -> tuple[int, int, int]:
        """Return ``(allocated, peak since the previous read, reserved)``; asked when ready."""
        assert self.statistics is not None
        if self._levels is None:
            return self.statistics.read(index)
        try:
            return self._levels.read(index)
        except LookupError:
            # torch says why in its own words
            self.statistics.figures(index)
            raise

    def segments(self) -> Sequence[Mapping[str, Any]]:
        """Return the allocator's segments, with their blocks.

        Raises:
            LookupError: the allocator does not tell its blocks.
            Exception: whatever torch raises.
        """
        take = getattr(self.module, "memory_snapshot", None)
        if take is None:
            take = getattr(getattr(self.module, "memory", None), "memory_snapshot", None)
        if take is None or not self.lists_blocks:
            raise LookupError(f"the allocator of {self.name} does not tell its blocks")
        try:
            # the trace may be gigabytes; an older torch, and XPU's, cannot leave it out
            found: Sequence[Mapping[str, Any]] = take(include_traces=False)
        except TypeError:
            found = take()
        return found

    def install(self) -> None:
        """Make the user's own peak statistics survive our reads."""
        if self._levels is not None or self.statistics is None:
            return
        if self.reports_blocks() and self.torch is sys.modules.get("torch"):
            with contextlib.suppress(NativeUnavailable):
                self._levels = AllocatorLevels(self.device_type)
                return
        self.statistics.install()


class Cuda(Backend):
    """NVIDIA, and AMD through ROCm, which goes by the name of cuda in torch."""

    name = "cuda"
    aliases = ("hip",)
    device_type = 1
    lists_blocks = True
    build = "a CUDA or ROCm build: https://pytorch.org/get-started"

    def __init__(self, torch: Any) -> None:
        super().__init__(torch)
        self.statistics = _caching_allocator(
            torch, self.name, "_cuda_memoryStats", "_cuda_resetPeakMemoryStats"
        )
        # Asks the driver about a context without creating one. Asked before torch is ready it
        # would initialise the driver (at::cuda::device_count). Bound directly: with eight
        # devices visible it is asked for seven of them at every profiled line.
        has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
        if has_context is not None:
            self.in_use = has_context  # type: ignore[method-assign]

    @classmethod
    def is_built(cls, torch: Any) -> bool:
        """Tell whether this torch was built with CUDA or ROCm."""
        return hasattr(torch._C, "_cuda_memoryStats")

    def describe(self) -> tuple[str, str]:
        """Return what counts the bytes and how exact it is; a program may choose another."""
        allocator = self._allocator()
        if allocator == "native":
            kind = "HIP" if self._is_rocm() else "CUDA"
            return f"{kind} caching allocator", _ROUNDED
        if allocator == "cudaMallocAsync":
            # c10/cuda/CUDAMallocAsyncAllocator.cpp asks the device's default pool
            return "cudaMallocAsync pool", "as the driver counts its pool, other users included"
        return f"{allocator} allocator", "as that allocator counts, if it does"

    def reports_blocks(self) -> bool:
        """Tell whether its allocator reports each block to torch as it comes and goes."""
        return self._allocator() == "native"

    def segments(self) -> Sequence[Mapping[str, Any]]:
        """Return the allocator's segments, with their blocks, if it is torch's own."""
        if not self.reports_blocks():
            raise LookupError("this allocator does not tell its blocks")
        return super().segments()

    def _is_rocm(self) -> bool:
        return bool(getattr(self.torch.version, "hip", None))

    def _allocator(self) -> str:
        try:
            return str(self.torch._C._cuda_getAllocatorBackend())
        except Exception:  # its name only words the header
            return "native"

    def _discovery(self) -> str:
        return "_device_count_amdsmi" if self._is_rocm() else "_device_count_nvml"

    def current(self) -> int:
        """Return the current device of the calling thread, 0 before torch is ready."""
        return int(self.torch._C._cuda_getDevice()) if self.ready() else 0


class Xpu(Backend):
    """Intel GPUs."""

    name = "xpu"
    device_type = 12
    lists_blocks = True
    build = "an XPU build: https://pytorch.org/get-started"

    def __init__(self, torch: Any) -> None:
        super().__init__(torch)
        self.statistics = _caching_allocator(
            torch, self.name, "_xpu_memoryStats", "_xpu_resetPeakMemoryStats"
        )

    @classmethod
    def is_built(cls, torch: Any) -> bool:
        """Tell whether this torch was built with XPU."""
        return hasattr(torch._C, "_xpu_memoryStats")

    def describe(self) -> tuple[str, str]:
        """Return what counts the bytes and how exact it is, for the report's header."""
        return "XPU caching allocator", _ROUNDED

    def _discovery(self) -> str:
        return "_device_count_zes"

    def current(self) -> int:
        """Return the current device of the calling thread, 0 before torch is ready."""
        return int(self.torch._C._xpu_getDevice()) if self.ready() else 0


class Mps(Backend):
    """Apple's GPU; it has one device, and peaks since torch 2.13."""

    name = "mps"
    device_type = 13
    is_numbered = False
    build = "a Mac with Apple silicon"

    def __init__(self, torch: Any) -> None:
        super().__init__(torch)
        self._allocator_ready = _answers(
            getattr(torch._C, "_accelerator_isAllocatorInitialized", None)
        )
        if self._allocator_ready is not None:
            self.statistics = Statistics.shared(
                torch._C,
                "_accelerator_getDeviceStats",
                "_accelerator_resetPeakStats",
                _caching_figures,
            )
        else:
            self.missing["peak"] = "torch before 2.13 keeps no peak on MPS: upgrade torch"

    @classmethod
    def is_built(cls, torch: Any) -> bool:
        """Tell whether this torch was built with MPS."""
        return bool(getattr(torch._C, "_has_mps", False))

    def describe(self) -> tuple[str, str]:
        """Return what counts the bytes and how exact it is, for the report's header."""
        source = "MPS heap allocator" if self.statistics else "MPS heap allocator, Metal driver"
        return source, "exact as torch rounds to Metal's alignment"

    def ready(self) -> bool:
        """Tell whether the program has used the device.

        Before torch 2.13 nothing tells, so the answer is whether the program has asked
        ``torch.backends.mps.is_available()``, which caches its result and is what makes the
        Metal device.
        """
        if self._allocator_ready is not None:
            return bool(self._allocator_ready()) and not self.forked()
        asked = self.torch.backends.mps.is_available
        info = getattr(asked, "cache_info", None)
        return bool(info and info().currsize and asked()) and not self.forked()

    def count(self) -> int:
        """Return 1: Metal gives torch one device."""
        return 1

    def visible(self) -> int | None:
        """Return 1, or 0 on a machine where the program has found none."""
        return 1

    def in_use(self, index: int) -> bool:
        """Tell that the device is in use: it is ready only then."""
        return True

    def read(self, index: int) -> tuple[int, int, int]:
        """Return ``(allocated, peak since the previous read, reserved)``; asked when ready."""
        if self.statistics is not None:
            return self.statistics.read(index)
        c_module = self.torch._C
        allocated = int(c_module._mps_currentAllocatedMemory())
        return allocated, UNKNOWN, int(c_module._mps_driverAllocatedMemory())


KINDS: tuple[type[Backend], ...] = (Cuda, Xpu, Mps)
"""Every backend there is, built or not."""


def _caching_figures(stats: Stats) -> tuple[int, int, int]:
    allocated = stats["allocated_bytes"]["all"]
    return allocated["current"], allocated["peak"], stats["reserved_bytes"]["all"]["current"]


def _caching_allocator(torch: Any, name: str, query: str, reset: str) -> Statistics:
    c_module = torch._C

    def is_the_accelerator() -> bool:
        # a registered out-of-tree backend may take precedence (ATen/DeviceAccelerator.cpp)
        accelerator = c_module._accelerator_getAccelerator()
        return accelerator is not None and accelerator.type == name

    return Statistics.shared(
        c_module,
        query,
        reset,
        _caching_figures,
        also=[("_accelerator_getDeviceStats", "_accelerator_resetPeakStats")],
        also_applies=is_the_accelerator,
    )


def _answers(function: Callable[[], bool] | None) -> Callable[[], bool] | None:
    """Return ``function`` unless asking it raises, as it does for MPS before torch 2.13."""
    if function is None:
        return None
    try:
        function()
    except Exception:  # an internal assert of torch: "Allocator for mps is not a DeviceAllocator"
        return None
    return function
