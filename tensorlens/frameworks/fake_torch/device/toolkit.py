"""What comes with a CUDA build besides devices: the toolkit's own modules, and their versions."""

from __future__ import annotations

import importlib
import threading
from typing import Any

import torch

from tensorlens.frameworks.fake_torch.device.bindings import CUDA_VERSION, CUDNN_VERSION, Bindings
from tensorlens.frameworks.fake_torch.device.standin import StandIn

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
    cuda.memory.mem_get_info = cuda.mem_get_info = _mem_get_info(bindings)
    cuda.nvtx._nvtx = _Nvtx()
    _install_cudnn()


def _default_generator(bindings: Bindings, index: int) -> Any:
    bindings.library.hand_out_default_generator()
    return torch.Generator(torch.device("cuda", index))


def _mem_get_info(bindings: Bindings) -> Any:
    def mem_get_info(device: Any = None) -> tuple[int, int]:
        """Return free and total bytes of a device."""
        index = torch.cuda._utils._get_device_index(device, optional=True)
        return bindings.memory_info(index)

    return mem_get_info


def _cudart(bindings: Bindings) -> StandIn:
    error = StandIn(success=0)
    return StandIn(
        cudaError=error,
        cudaGetErrorString=lambda code: f"error {code}",
        cudaProfilerStart=lambda: 0,
        cudaProfilerStop=lambda: 0,
        cudaMemGetInfo=bindings.memory_info,
        cudaDeviceSynchronize=lambda: 0,
        cudaStreamSynchronize=lambda stream: 0,
        cudaHostRegister=lambda data, size, flags: 0,
        cudaHostUnregister=lambda data: 0,
    )


class _Nvtx:
    """Ranges of a timeline that nobody draws."""

    def __init__(self) -> None:
        self._depth = 0

    def rangePushA(self, message: str) -> int:
        self._depth += 1
        return self._depth - 1

    def rangePop(self) -> int:
        self._depth -= 1
        return self._depth

    def rangeStartA(self, message: str) -> int:
        return 0

    def rangeEnd(self, number: int) -> None:
        pass

    def markA(self, message: str) -> None:
        pass


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
