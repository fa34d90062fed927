"""Stand-ins for the rest of a CUDA build: the toolkit's modules, streams, older types."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from typing import Any

import torch

from tensorlens.planning.torch.device.bindings import (
    CUDA_VERSION,
    CUDNN_VERSION,
    Bindings,
    StandIn,
)

CUDNN_RNN: Any = importlib.import_module("torch.backends.cudnn.rnn")
"""The module: an attribute of this name is not there, or a setting, in some releases."""


def install(bindings: Bindings) -> None:
    """Let ``torch.cuda`` find itself initialized, with generators, cuDNN, cudart and nvtx."""
    cuda: Any = torch.cuda
    torch.version.cuda = CUDA_VERSION
    cuda._cudart = _cudart(bindings)
    cuda._is_in_bad_fork = lambda: False
    cuda._exchange_device = torch._C._cuda_exchangeDevice
    cuda._maybe_exchange_device = torch._C._cuda_maybeExchangeDevice
    cuda._get_device_properties = bindings.properties
    cuda._CudaDeviceProperties = StandIn
    cuda._queued_calls.clear()
    cuda._initialized = True
    cuda._cached_device_count = bindings.library.device_count()
    cuda._tls = threading.local()
    cuda.default_generators = tuple(
        _default_generator(bindings, index) for index in range(cuda._cached_device_count)
    )
    cuda.memory.mem_get_info = cuda.mem_get_info = lambda device=None: bindings.memory_info(0)
    # ranges of a timeline that nobody draws
    cuda.nvtx._nvtx = StandIn(
        rangePushA=lambda message: 0,
        rangePop=lambda: 0,
        rangeStartA=lambda message: 0,
        rangeEnd=lambda number: None,
        markA=lambda message: None,
    )
    _install_cudnn()


def _default_generator(bindings: Bindings, index: int) -> Any:
    bindings.library.hand_out_default_generator()
    return torch.Generator(torch.device("cuda", index))


def _cudart(bindings: Bindings) -> StandIn:
    return StandIn(
        cudaError=StandIn(success=0),
        cudaGetErrorString=lambda code: f"error {code}",
        cudaProfilerStart=lambda: 0,
        cudaProfilerStop=lambda: 0,
        cudaMemGetInfo=bindings.memory_info,
        cudaDeviceSynchronize=lambda: 0,
        cudaHostRegister=lambda data, size, flags: 0,
        cudaHostUnregister=lambda data: 0,
    )


def _install_cudnn() -> None:
    version = (CUDNN_VERSION // 10000, CUDNN_VERSION // 100 % 100, CUDNN_VERSION % 100)
    cudnn: Any = torch.backends.cudnn
    stand_in = StandIn(
        is_cuda=True,
        RNNMode=StandIn(rnn_relu=0, rnn_tanh=1, lstm=2, gru=3),
        getVersionInt=lambda: CUDNN_VERSION,
        getCompileVersion=lambda: version,
        getRuntimeVersion=lambda: version,
    )
    torch._C._cudnn = stand_in
    module = cudnn.m if hasattr(cudnn, "m") else cudnn
    module._cudnn = stand_in
    # that module too has put another object in its place
    CUDNN_RNN.get_cudnn_mode.__globals__["_cudnn"] = stand_in
    module._init = lambda: True
    module.version = lambda: CUDNN_VERSION


class StreamBase(torch.Stream):  # type: ignore[misc]
    """Stands in for ``torch._C._CudaStreamBase``."""

    def __new__(cls, device: Any = None, priority: int = 0, **numbers: Any) -> Any:
        """Make a stream of the current device's pool, or the one that the numbers name."""
        if numbers.get("stream_id") is not None:
            numbers.pop("stream_ptr", None)
            return super().__new__(cls, **numbers)
        where = torch.cuda.current_device() if device is None else device
        return super().__new__(cls, device=torch.device("cuda", where), priority=priority)

    @property
    def cuda_stream(self) -> int:
        """The number of the stream, where a card would have a pointer."""
        return int(self.stream_id)

    @property
    def priority(self) -> int:
        """-1 for a stream of the pool of high priority, else 0."""
        return -1 if self.stream_id & 0b10101 == 0b00101 else 0

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the least and the greatest priority, as CUDA gives them."""
        return 0, -5


class EventBase(torch.Event):  # type: ignore[misc]
    """Stands in for ``torch._C._CudaEventBase``."""

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
        """Note the moment."""
        self._moment = time.perf_counter()
        super().record(stream)

    def elapsed_time(self, end_event: Any) -> float:
        """Return the milliseconds until another; never zero, as programs divide by it."""
        until = getattr(end_event, "_moment", 0.0)
        return max((until - getattr(self, "_moment", until)) * 1e3, 1e-3)

    @property
    def cuda_event(self) -> int:
        """The number of the event, where a card would have a pointer."""
        return id(self)


def install_streams() -> None:
    """Make ``torch.cuda.Stream`` and ``torch.cuda.Event`` of these."""
    from torch.cuda import streams

    names = ("Stream", "ExternalStream", "Event")
    before = {getattr(streams, name): name for name in names}
    torch._C._CudaStreamBase, torch._C._CudaEventBase = StreamBase, EventBase
    importlib.reload(streams)
    for module_name, module in [*sys.modules.items()]:
        if module_name.partition(".")[0] != "torch" or module is streams:
            continue
        for name, value in [*getattr(module, "__dict__", {}).items()]:
            # by its own type: some module globals warn at every look
            if type(value) is type and value in before:
                setattr(module, name, getattr(streams, before[value]))


_TYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}


class _LegacyType(type):
    """The type of such a class: a call makes a plain tensor."""

    dtype: torch.dtype

    def __call__(cls, *args: Any) -> Any:
        if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
            return torch.as_tensor(args[0], dtype=cls.dtype, device="cuda")
        size = args[0] if args and isinstance(args[0], torch.Size) else args
        return torch.empty(size, dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, instance: Any) -> bool:
        return (
            isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype
        )


def install_types() -> None:
    """Put the classes into ``torch.cuda``."""
    by_name: dict[str, Any] = {}
    for name, dtype in _TYPES.items():
        made = _LegacyType(name, (), {"dtype": dtype, "__module__": "torch.cuda"})
        setattr(torch.cuda, name, made)
        by_name[f"torch.cuda.{name}"] = made
    original, original_default = torch.Tensor.type, torch.set_default_tensor_type

    def convert(tensor: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        legacy = by_name.get(dtype, dtype) if isinstance(dtype, str) else dtype
        if isinstance(legacy, _LegacyType):
            return tensor.to("cuda", legacy.dtype)
        return original(tensor, *(() if dtype is None else (dtype,)), *args, **kwargs)

    def set_default(kind: Any) -> None:
        legacy = by_name.get(kind, kind) if isinstance(kind, str) else kind
        if isinstance(legacy, _LegacyType):
            torch.set_default_device("cuda")
            torch.set_default_dtype(legacy.dtype)
        else:
            original_default(kind)

    torch.Tensor.type = convert
    torch.set_default_tensor_type = set_default
