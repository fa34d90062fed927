"""Stand-ins for parts of a CUDA build of torch: functions of ``torch._C``, streams, cuDNN.

With them ``torch.cuda`` works unchanged, for the program and for torch itself.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from tensorlens.planning.card import Card
from tensorlens.planning.trace import caution

if TYPE_CHECKING:
    from tensorlens.planning.torch.tracker import Tracker


class StandIn:
    """A module or an object of a CUDA build; compared and hashed by identity."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        # only called for attributes that were not given
        raise AttributeError(f"{name} cannot be had from a card that is not there")


_CUDA_VERSION = 13000
_CUDNN_VERSION = 92000
"""Both as in ``native/cuda_device/hooks.hpp``."""
_CUDA_DEVICE_TYPE = 1
_MEASURES = ("current", "peak", "allocated", "freed")
_IN_USE = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes")
_UNKNOWN = ("allocation", "segment", "active", "inactive_split", "inactive_split_bytes")
_NO_EFFECT = (
    *("_cuda_init", "_cuda_synchronize", "_cuda_ipc_collect", "_cuda_set_sync_debug_mode"),
    *("_cuda_set_cudnn_benchmark_limit", "_cuda_record_memory_history"),
    *("_cuda_cudaCachingAllocator_set_allocator_settings", "_cuda_resetAccumulatedMemoryStats"),
    *("_cuda_resetPeakHostMemoryStats", "_cuda_resetAccumulatedHostMemoryStats"),
)
_ZEROS = (
    *("num_alloc_retries", "num_ooms", "num_sync_all_streams"),
    *("num_device_alloc", "num_device_free"),
)


class Bindings:
    """Replacements of functions in ``torch._C``."""

    def __init__(self, library: ctypes.PyDLL, card: Card) -> None:
        self.library = library
        self.card = card
        self.tracker: Tracker | None = None
        """Tracker of the current run, which knows the memory in use."""
        self.memory_fraction = 1.0

    def install(self) -> None:
        """Set all functions in ``torch._C``."""
        answers: dict[str, Any] = {
            **dict.fromkeys(_NO_EFFECT, lambda *args, **kwargs: None),
            **dict.fromkeys(("_has_cuda", "_has_cudnn", "_has_magma"), True),
            "_cuda_getDeviceCount": lambda: 1,
            "_cuda_getDevice": lambda: 0,
            "_cuda_setDevice": _exchange_device,
            "_cuda_exchangeDevice": _exchange_device,
            "_cuda_maybeExchangeDevice": _exchange_device,
            "_cuda_isInBadFork": lambda: False,
            "_cuda_getArchFlags": lambda: "sm_{}{}".format(*self.card.capability),
            "_cuda_getCompiledVersion": lambda: _CUDA_VERSION,
            "_cuda_get_sync_debug_mode": lambda: 0,
            "_cuda_getCurrentBlasHandle": lambda: 0,
            "_cuda_getCurrentStream": self._current_stream,
            "_cuda_getCurrentRawStream": lambda device: self._current_stream(device)[0],
            "_cuda_getDefaultStream": lambda device: (0, device, _CUDA_DEVICE_TYPE),
            "_cuda_setStream": self._set_stream,
            "_cuda_isCurrentStreamCapturing": lambda: False,
            "_cuda_get_cudnn_benchmark_limit": lambda: 10,
            "_cuda_emptyCache": self._empty_cache,
            "_cuda_memoryStats": self._statistics,
            "_cuda_resetPeakMemoryStats": self._reset_peak,
            "_cuda_memorySnapshot": _no_snapshot,
            "_cuda_hostMemoryStats": dict,
            "_cuda_canDeviceAccessPeer": lambda device, peer: False,
            "_cuda_setMemoryFraction": self._set_memory_fraction,
            "_cuda_getMemoryFraction": lambda device: self.memory_fraction,
            "_cuda_getAllocatorBackend": lambda: "native",
            "_accelerator_isAllocatorInitialized": lambda: True,
            "_accelerator_emptyCache": self._empty_cache,
            "_accelerator_getDeviceStats": self._statistics,
            "_accelerator_resetPeakStats": self._reset_peak,
            "_accelerator_getMemoryInfo": self.memory_info,
        }
        for name, answer in answers.items():
            setattr(torch._C, name, answer)
        # imported from torch._C by name
        graphs: Any = torch.cuda.graphs
        graphs._cuda_isCurrentStreamCapturing = answers["_cuda_isCurrentStreamCapturing"]

    def properties(self, device: int) -> StandIn:
        """Return the result of ``torch.cuda.get_device_properties``."""
        card = self.card
        return StandIn(
            name=card.name,
            major=card.capability[0],
            minor=card.capability[1],
            total_memory=card.memory,
            multi_processor_count=card.multiprocessors,
            max_threads_per_multi_processor=card.resident_threads,
            max_threads_per_block=1024,
            regs_per_multiprocessor=65536,
            warp_size=32,
            shared_memory_per_block=49152,
            is_integrated=0,
            is_multi_gpu_board=0,
            L2_cache_size=0,
            pci_bus_id=device,
            pci_device_id=0,
            pci_domain_id=0,
            uuid=f"00000000-0000-0000-0000-{device:012d}",
            gcnArchName=card.name,
        )

    def _current_stream(self, device: int) -> tuple[int, int, int]:
        return self.library.tl_device_stream(), device, _CUDA_DEVICE_TYPE

    def _set_stream(self, stream_id: int, device_index: int, device_type: int) -> None:
        _exchange_device(device_index)
        self.library.tl_device_set_stream(stream_id)

    def memory_info(self, device: int) -> tuple[int, int]:
        """Return the free and total bytes of a device."""
        allocated, _ = self._in_use(device)
        return max(self.card.memory - allocated, 0), self.card.memory

    def _in_use(self, device: int) -> tuple[int, int]:
        """Return the allocated bytes, and their peak since the last reset."""
        if self.tracker is None:
            return 0, 0
        name = f"cuda:{device}"
        return self.tracker.allocated.get(name, 0), self.tracker.peaks.get(name, 0)

    def _reset_peak(self, device: int) -> None:
        if self.tracker is not None:
            self.tracker.reset_peak(f"cuda:{device}")

    def _empty_cache(self) -> None:
        if self.tracker is not None:
            for device in [*self.tracker.allocated]:
                self.tracker.empty_cache(device)

    def _set_memory_fraction(self, fraction: float, device: int) -> None:
        self.memory_fraction = fraction
        caution(
            "torch.cuda.set_per_process_memory_fraction is not simulated: the step may use the "
            "whole card"
        )

    def _statistics(self, device: int) -> dict[str, Any]:
        # cached memory is unknown before the allocator is simulated
        nothing = dict.fromkeys(_MEASURES, 0)
        in_use = dict(zip(_MEASURES, (*self._in_use(device), 0, 0), strict=True))
        pools = dict.fromkeys(("all", "large_pool", "small_pool"), nothing)
        return {
            **{name: {**pools, "all": in_use} for name in _IN_USE},
            **dict.fromkeys(_UNKNOWN, pools),
            **dict.fromkeys(("oversize_allocations", "oversize_segments"), nothing),
            **dict.fromkeys(_ZEROS, 0),
            "max_split_size": -1,
        }


def _exchange_device(device: int) -> int:
    if device >= 1:
        raise RuntimeError(f"CUDA error: invalid device ordinal ({device} of 1)")
    return 0 if device >= 0 else -1


def _no_snapshot(*args: Any, **kwargs: Any) -> NoReturn:
    raise RuntimeError("a snapshot of the allocator cannot be had from a card that is not there")


def install(library: ctypes.PyDLL, card: Card) -> Bindings:
    """Make torch look like a build with CUDA, initialized, on a card."""
    bindings = Bindings(library, card)
    bindings.install()
    _install_toolkit(bindings)
    _install_cudnn()
    _install_streams()
    return bindings


def _install_toolkit(bindings: Bindings) -> None:
    """Make ``torch.cuda`` look initialized, with generators, cudart and nvtx."""
    cuda: Any = torch.cuda
    torch.version.cuda = f"{_CUDA_VERSION // 1000}.{_CUDA_VERSION % 1000 // 10}"
    calls = ("ProfilerStart", "ProfilerStop", "DeviceSynchronize", "HostRegister", "HostUnregister")
    cuda._cudart = StandIn(
        cudaError=StandIn(success=0),
        cudaGetErrorString=lambda code: f"error {code}",
        cudaMemGetInfo=bindings.memory_info,
        **{f"cuda{each}": lambda *args: 0 for each in calls},
    )
    cuda._is_in_bad_fork = lambda: False
    cuda._exchange_device = torch._C._cuda_exchangeDevice
    cuda._maybe_exchange_device = torch._C._cuda_maybeExchangeDevice
    cuda._get_device_properties = bindings.properties
    cuda._CudaDeviceProperties = StandIn
    cuda._queued_calls.clear()
    cuda._initialized = True
    cuda._cached_device_count = 1
    cuda._tls = threading.local()
    bindings.library.tl_device_use_default_generator()
    cuda.default_generators = (torch.Generator(torch.device("cuda", 0)),)
    cuda.memory.mem_get_info = cuda.mem_get_info = lambda device=None: bindings.memory_info(0)
    # ranges of a timeline that nobody draws
    ranges = ("rangePushA", "rangePop", "rangeStartA", "rangeEnd", "markA")
    cuda.nvtx._nvtx = StandIn(**dict.fromkeys(ranges, lambda *args: 0))


def _install_cudnn() -> None:
    version = (_CUDNN_VERSION // 10000, _CUDNN_VERSION // 100 % 100, _CUDNN_VERSION % 100)
    cudnn: Any = torch.backends.cudnn
    stand_in = StandIn(
        is_cuda=True,
        RNNMode=StandIn(rnn_relu=0, rnn_tanh=1, lstm=2, gru=3),
        getVersionInt=lambda: _CUDNN_VERSION,
        getCompileVersion=lambda: version,
        getRuntimeVersion=lambda: version,
    )
    torch._C._cudnn = stand_in
    module = cudnn.m if hasattr(cudnn, "m") else cudnn
    module._cudnn = stand_in
    # by import: the attribute ``rnn`` of the package is missing or a setting in some releases
    rnn: Any = importlib.import_module("torch.backends.cudnn.rnn")
    rnn.get_cudnn_mode.__globals__["_cudnn"] = stand_in
    module._init = lambda: True
    module.version = lambda: _CUDNN_VERSION


class StreamBase(torch.Stream):  # type: ignore[misc]
    """Replacement of ``torch._C._CudaStreamBase``."""

    def __new__(cls, device: Any = None, priority: int = 0, **numbers: Any) -> Any:
        """Return a stream from the current device's pool, or the one with these numbers."""
        if numbers.get("stream_id") is not None:
            numbers.pop("stream_ptr", None)
            return super().__new__(cls, **numbers)
        where = torch.cuda.current_device() if device is None else device
        return super().__new__(cls, device=torch.device("cuda", where), priority=priority)

    @property
    def cuda_stream(self) -> int:
        """Number of the stream, in place of a pointer."""
        return int(self.stream_id)

    @property
    def priority(self) -> int:
        """-1 for a stream from the pool of high priority, else 0."""
        return -1 if self.stream_id & 0b10101 == 0b00101 else 0

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the lowest and the highest priority of CUDA."""
        return 0, -5


class EventBase(torch.Event):  # type: ignore[misc]
    """Replacement of ``torch._C._CudaEventBase``."""

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> Any:
        """Make an event."""
        return super().__new__(cls, device="cuda", enable_timing=True, blocking=blocking)

    def record(self, stream: Any = None) -> None:
        """Record the time."""
        self._time = time.perf_counter()
        super().record(stream)

    def elapsed_time(self, end_event: Any) -> float:
        """Return the milliseconds until another event; never zero, as programs divide by it.

        Events that were not recorded are refused, as in c10/cuda/CUDAEvent.h.
        """
        began, ended = (getattr(each, "_time", None) for each in (self, end_event))
        if began is None or ended is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return max(float(ended - began) * 1e3, 1e-3)

    @property
    def cuda_event(self) -> int:
        """Number of the event, in place of a pointer."""
        return id(self)


def _install_streams() -> None:
    """Define ``torch.cuda.Stream`` and ``torch.cuda.Event`` on these bases."""
    from torch.cuda import streams

    names = ("Stream", "ExternalStream", "Event")
    before = {getattr(streams, name): name for name in names}
    torch._C._CudaStreamBase, torch._C._CudaEventBase = StreamBase, EventBase
    importlib.reload(streams)
    for module_name, module in [*sys.modules.items()]:
        if module_name.partition(".")[0] != "torch" or module is streams:
            continue
        for name, value in [*getattr(module, "__dict__", {}).items()]:
            # type(), as isinstance() makes some module globals warn
            if type(value) is type and value in before:
                setattr(module, name, getattr(streams, before[value]))
