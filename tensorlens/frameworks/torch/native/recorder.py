"""Recordings of torch's CPU allocator: operators, autograd's nodes and modules with them."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from tensorlens.frameworks.native.allocator import NativeAllocator
from tensorlens.frameworks.native.building import NativeUnavailable, load
from tensorlens.frameworks.native.recorder import NativeRecorder
from tensorlens.frameworks.torch.native.build import OPS, OPS_ALONE


class TorchRecorder(NativeRecorder):
    """Records spans of what torch's counting allocator hands out; spans may overlap."""

    def __init__(self, allocator: NativeAllocator) -> None:
        super().__init__(allocator)
        self._ops: ctypes.PyDLL | None = None
        self._module_call = torch.nn.Module._wrapped_call_impl.__code__
        self._knows_modules: bool | None = None

    def stop_ops(self) -> None:
        """Nobody records any more who wants operators."""
        if self._ops is not None:
            self._ops.tl_ops_stop()

    def start_ops(self) -> None:
        """Have operators and autograd's nodes noted from now on."""
        if self._ops is None and self.no_ops is None:
            self._ops = self._load_ops()
            if self._ops is None:
                return
            hooks = self._library.tl_hooks()
            self._ops.tl_ops_connect.argtypes = (ctypes.c_void_p,)
            self._ops.tl_ops_connect(hooks)
            self._library.tl_hooks_connected()
        if self._ops is not None:
            self._ops.tl_ops_start()

    def _load_ops(self) -> ctypes.PyDLL | None:
        for part in (OPS, OPS_ALONE):
            try:
                return load(part)
            except NativeUnavailable as error:
                self.no_ops = str(error)
        return None

    def tell_modules(self) -> None:
        """Let the native part read which module a frame calls, after a trial."""
        if self._knows_modules is None:
            probe = _Probe()
            self._library.tl_module_call(id(_Probe.call.__code__))
            self._knows_modules = self.reads_modules(probe.call, probe)
            code = id(self._module_call) if self._knows_modules else None
            self._library.tl_module_call(code)


class _Probe:
    """An object whose method is called as a module is."""

    def call(self, *arguments: Any, **options: Any) -> None:
        torch.UntypedStorage(64)
