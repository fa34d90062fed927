"""torch's accelerator backends: their state, and the figures of their allocators and drivers.

Nothing here initialises a device: before a backend is ready only NVML, amdsmi and Level Zero
Sysman are asked, as torch itself does so that the program can still fork. Statements about torch
were read in the source of torch 2.13 unless a comment names another version.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from tensorlens.frameworks.base import UNKNOWN
from tensorlens.frameworks.torch.native import level_reader
from tensorlens.frameworks.torch.peak_statistics import PeakStatistics
from tensorlens.native.build import NativeUnavailable

# c10/core/AllocatorConfig.h: kMinBlockSize. A block of the large pool is split only if more than
# 1 MiB would be left (c10/cuda/CUDACachingAllocator.cpp): a figure may exceed the request by that.
_ROUNDED = "exact as torch rounds: multiples of 512 B"
DRIVER = {
    "other": "in use on the device beside what is reserved here: contexts, kernels and libraries' "
    "own memory, and other processes",
    "driver_used": "in use on the device by all processes, as the driver tells: total less free",
    "driver_total": "what the device has, as the driver tells",
}
_METAL = {
    "other": "what Metal has given this process beside what is reserved here: MPSGraph and kernels",
    "driver_used": "what Metal has given this process; it does not tell of others",
    "driver_total": "the most that Metal recommends to use",
}
CUBLAS_WORKSPACES = ((2 * 4096 + 8 * 16) << 10, (8 * 4096) << 10)
"""Bytes of a handle's workspace, the small and the large one: ``parseChosenWorkspaceSize`` of
``aten/src/ATen/cuda/CublasHandlePool.cpp``."""
_OF_ACCELERATOR = ("_accelerator_getDeviceStats", "_accelerator_resetPeakStats")


class Backend:
    """One backend of this torch build; ``index`` is a device's number in it."""

    name = ""
    aliases: tuple[str, ...] = ()
    """Other names for it in messages of failed allocations."""
    device_type = 0
    """The backend's number in ``c10/core/DeviceType.h``."""
    is_numbered = True
    """Whether device names end with a number: ``cuda:0``."""
    can_list_blocks = False
    """Whether an allocator of this backend can list its blocks."""
    build = "another build"
    """Build or machine that has the backend."""
    mark = ""
    """Attribute of ``torch._C`` that is true if torch was built with the backend."""
    discovery = ""
    """Function of the backend's module that counts devices without initialising any."""

    driver_explanations: Mapping[str, str] = DRIVER
    """Meaning of the driver's figures, by field of a ledger."""
    workspaces: Set[int] = frozenset()
    """Known sizes of libraries' workspaces, in bytes."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.module = getattr(torch, self.name)
        self.missing: dict[str, str] = {}
        self.statistics: PeakStatistics | None = None
        self._level: Callable[[int], tuple[int, int, int]] | None = None

    @classmethod
    def is_built(cls, torch: Any) -> bool:
        """Return whether this torch was built with the backend."""
        return bool(getattr(torch._C, cls.mark, False))

    def describe(self) -> tuple[str, str]:
        """Return the name of the allocator and its precision, for the report's header."""
        return f"{self.name.upper()} caching allocator", _ROUNDED

    @classmethod
    def spell(cls, index: int) -> str:
        """Return torch's name of a device."""
        return f"{cls.name}:{index}" if cls.is_numbered else cls.name

    def ready(self) -> bool:
        """Return whether the program has initialised the backend in this process."""
        return bool(self.module.is_initialized())

    def forked(self) -> bool:
        """Return whether this is a forked child in which the backend cannot be used."""
        return bool(self.module._is_in_bad_fork())

    def count(self) -> int:
        """Return the number of devices; only to be called when ready."""
        return int(self.module.device_count())

    def visible(self) -> int | None:
        """Return the number of devices; None if it is known only after initialising."""
        if self.ready():
            return self.count()
        discover = getattr(self.module, self.discovery, None)
        if discover is None:
            return None
        with warnings.catch_warnings():
            # "Can't initialize NVML" is an answer here; the user need not see it
            warnings.simplefilter("ignore")
            found = int(discover())
        return None if found < 0 else found

    def may_exist(self) -> bool:
        """Return whether there may be a device; initialises nothing."""
        try:
            return self.visible() != 0
        except Exception:  # a lost context or driver
            return False

    def current(self) -> int:
        """Return the number of the thread's current device; 0 before use."""
        return int(getattr(self.torch._C, f"_{self.name}_getDevice")()) if self.ready() else 0

    def in_use(self, index: int) -> bool:
        """Return whether the device was used so far; only to be called when ready.

        Here it is used from its first allocation on; a backend that can ask torch overrides this.
        """
        assert self.statistics is not None
        return any(figure > 0 for figure in self.statistics.figures(index))

    def lists_blocks(self) -> bool:
        """Return whether the allocator in use lists its blocks, and reports each as it changes."""
        return self.can_list_blocks

    def read(self, index: int) -> tuple[int, int, int]:
        """Return ``(allocated, peak since the previous read, reserved)``; only when ready."""
        assert self.statistics is not None
        if self._level is None:
            return self.statistics.read(index)
        try:
            return self._level(index)
        except LookupError:
            # torch's own error tells more, if it raises one
            self.statistics.figures(index)
            raise

    def segments(self) -> Sequence[Mapping[str, Any]]:
        """Return the allocator's segments, with their blocks.

        Raises:
            LookupError: the allocator does not list its blocks.
            Exception: whatever torch raises.
        """
        take = getattr(self.module, "memory_snapshot", None)
        if take is None:
            take = getattr(getattr(self.module, "memory", None), "memory_snapshot", None)
        if take is None or not self.lists_blocks():
            raise LookupError("this allocator does not tell its blocks")
        try:
            # the trace may be gigabytes; an older torch, and XPU's, cannot leave it out
            found: Sequence[Mapping[str, Any]] = take(include_traces=False)
        except TypeError:
            found = take()
        return found

    def require_context(self, index: int) -> None:
        """Check that asking the driver changes nothing.

        Raises:
            LookupError: asking could create a context, or end the capture of a graph.
        """
        if not self.in_use(index):
            raise LookupError(f"this process has not used {self.spell(index)}")

    def driver_figures(self, index: int) -> tuple[int, int]:
        """Return the bytes that all processes use on a device, and the bytes it has.

        Raises:
            LookupError: the backend does not tell.
        """
        ask = getattr(self.module, "mem_get_info", None)
        if ask is None:
            what = f"the memory of {self.name} devices"
            raise LookupError(f"this torch does not tell {what}: upgrade torch")
        free, total = ask(index)
        return int(total) - int(free), int(total)

    def install(self) -> None:
        """Keep the user's own peak statistics intact while we read peaks."""
        if self._level is not None or self.statistics is None:
            return
        if self.lists_blocks() and self.torch is sys.modules.get("torch"):
            with contextlib.suppress(NativeUnavailable):
                self._level = level_reader(self.device_type)
                return
        self.statistics.install()

    def _own_statistics(self) -> PeakStatistics:
        """Return the statistics of a caching allocator; ``torch.accelerator`` has them too."""
        c_module, name = self.torch._C, self.name

        def is_the_accelerator() -> bool:
            # a registered out-of-tree backend may take precedence (ATen/DeviceAccelerator.cpp)
            accelerator = c_module._accelerator_getAccelerator()
            return accelerator is not None and accelerator.type == name

        own = (f"_{name}_memoryStats", f"_{name}_resetPeakMemoryStats")
        return PeakStatistics.shared(
            c_module, own, also=_OF_ACCELERATOR, applies=is_the_accelerator
        )


class Cuda(Backend):
    """NVIDIA's GPUs, and AMD's through ROCm, which torch calls ``cuda`` as well."""

    name = "cuda"
    aliases = ("hip",)
    device_type = 1
    can_list_blocks = True
    build = "a CUDA or ROCm build: https://pytorch.org/get-started"
    mark = "_cuda_memoryStats"

    def __init__(self, torch: Any) -> None:
        super().__init__(torch)
        self.statistics = self._own_statistics()
        self._is_rocm = bool(getattr(torch.version, "hip", None))
        self.discovery = "_device_count_amdsmi" if self._is_rocm else "_device_count_nvml"
        self.workspaces = frozenset(() if self._is_rocm else CUBLAS_WORKSPACES)
        # This function asks whether a context exists and creates none, but before torch is ready
        # it would initialise the driver (at::cuda::device_count). It is bound directly for speed:
        # with eight visible devices it is called for seven of them at every profiled line.
        has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
        if has_context is not None:
            self.in_use = has_context  # type: ignore[method-assign]

    def describe(self) -> tuple[str, str]:
        """Return the name of the allocator that the program chose, and its precision."""
        allocator = self._allocator()
        if allocator == "native":
            return f"{'HIP' if self._is_rocm else 'CUDA'} caching allocator", _ROUNDED
        if allocator == "cudaMallocAsync":
            # c10/cuda/CUDAMallocAsyncAllocator.cpp asks the device's default pool
            return "cudaMallocAsync pool", "as the driver counts its pool, other users included"
        return f"{allocator} allocator", "as that allocator counts, if it does"

    def lists_blocks(self) -> bool:
        """Return whether the allocator in use is torch's caching allocator."""
        return self._allocator() == "native"

    def require_context(self, index: int) -> None:
        """Check that asking the driver creates no context and ends no graph's capture."""
        super().require_context(index)
        # without a context on the current device nothing is captured there, and
        # is_current_stream_capturing() would create one (c10/cuda/CUDAGraphsC10Utils.h:
        # currentStreamCaptureStatusMayInitCtx)
        if self.in_use(self.current()) and self.module.is_current_stream_capturing():
            raise LookupError("a CUDA graph is being captured, which asking the driver could end")

    def process_bytes(self, index: int) -> int:
        """Return the bytes this process has on a CUDA device, its context included.

        Raises:
            LookupError: NVML is not installed, or does not tell.
        """
        if self._is_rocm:
            raise LookupError("ROCm's drivers are not asked for the memory of a process")
        try:
            pynvml = importlib.import_module("pynvml")
        except ImportError:
            raise LookupError("needs NVML's Python bindings: pip install nvidia-ml-py") from None
        # NVML numbers devices otherwise than CUDA does, and knows nothing of CUDA_VISIBLE_DEVICES
        uuid = self.module.get_device_properties(index).uuid
        pynvml.nvmlInit()
        try:
            try:
                handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            except pynvml.NVMLError:
                handle = pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
            processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        finally:
            pynvml.nvmlShutdown()
        sizes = [process.usedGpuMemory for process in processes if process.pid == os.getpid()]
        if not sizes:
            raise LookupError(
                "NVML does not list this process: in a container it has another number there"
            )
        if sizes[0] is None:
            raise LookupError("this driver does not tell NVML the memory of a process (WDDM)")
        return int(sizes[0])

    def _allocator(self) -> str:
        try:
            return str(self.torch._C._cuda_getAllocatorBackend())
        except Exception:  # the name is for the header alone
            return "native"


class Xpu(Backend):
    """Intel GPUs."""

    name = "xpu"
    device_type = 12
    can_list_blocks = True
    build = "an XPU build: https://pytorch.org/get-started"
    mark = "_xpu_memoryStats"
    discovery = "_device_count_zes"

    def __init__(self, torch: Any) -> None:
        super().__init__(torch)
        self.statistics = self._own_statistics()


class Mps(Backend):
    """Apple's GPU; it has one device, and peaks since torch 2.13."""

    name = "mps"
    device_type = 13
    is_numbered = False
    build = "a Mac with Apple silicon"
    driver_explanations = _METAL
    mark = "_has_mps"

    def __init__(self, torch: Any) -> None:
        super().__init__(torch)
        self._allocator_ready: Callable[[], bool] | None = None
        # before torch 2.13 it raises: "Allocator for mps is not a DeviceAllocator"
        with contextlib.suppress(Exception):
            torch._C._accelerator_isAllocatorInitialized()
            self._allocator_ready = torch._C._accelerator_isAllocatorInitialized
        if self._allocator_ready is not None:
            self.statistics = PeakStatistics.shared(torch._C, _OF_ACCELERATOR)
        else:
            self.missing["peak"] = "torch before 2.13 keeps no peak on MPS: upgrade torch"

    def describe(self) -> tuple[str, str]:
        """Return the name of the allocator and its precision, for the report's header."""
        source = "MPS heap allocator" if self.statistics else "MPS heap allocator, Metal driver"
        return source, "exact as torch rounds to Metal's alignment"

    def ready(self) -> bool:
        """Return whether the program has used the device.

        Before torch 2.13 this is whether it has called ``torch.backends.mps.is_available()``,
        which creates the Metal device and caches its result.
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
        """Return 1; Metal is not asked whether it has a device."""
        return 1

    def current(self) -> int:
        """Return 0, the only device."""
        return 0

    def in_use(self, index: int) -> bool:
        """Return True: the backend is ready only once the device is in use."""
        return True

    def read(self, index: int) -> tuple[int, int, int]:
        """Return ``(allocated, peak since the previous read, reserved)``; only when ready."""
        if self.statistics is not None:
            return self.statistics.read(index)
        c_module = self.torch._C
        allocated = int(c_module._mps_currentAllocatedMemory())
        return allocated, UNKNOWN, int(c_module._mps_driverAllocatedMemory())

    def driver_figures(self, index: int) -> tuple[int, int]:
        """Return the bytes that this process has, and the maximum that Metal recommends."""
        module = self.module
        return int(module.driver_allocated_memory()), int(module.recommended_max_memory())


KINDS: tuple[type[Backend], ...] = (Cuda, Xpu, Mps)
"""All backends, whether this torch was built with them or not."""
