"""A recording of torch's CPU allocator while it runs."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import torch

from tensorlens.frameworks.base import CensusRoot, RecordOptions
from tensorlens.frameworks.host.allocator import NativeAllocator
from tensorlens.frameworks.host.allocator_log import NativeRecorder
from tensorlens.frameworks.host.recorder import (
    FrameworkHooks,
    HostRecorder,
    ModulePath,
    Moment,
)
from tensorlens.frameworks.torch import cpu
from tensorlens.frameworks.torch.census.exclusive_use import others_run
from tensorlens.frameworks.torch.census.findings import look
from tensorlens.frameworks.torch.cpu import watch
from tensorlens.frameworks.torch.native.build import OPS
from tensorlens.heap import UNREACHABLE
from tensorlens.native.build import NativeUnavailable, load
from tensorlens.records.tensors import TensorTable


class TorchRecorder(NativeRecorder):
    """Records spans of what torch's counting allocator hands out; spans may overlap."""

    def __init__(self, allocator: NativeAllocator) -> None:
        super().__init__(allocator)
        self._ops: ctypes.PyDLL | None = None
        # which code calls modules
        self._module_call = torch.nn.Module._wrapped_call_impl.__code__
        self._library.tl_module_call(id(self._module_call))

    def stop_ops(self) -> None:
        """Nobody records any more who wants operators."""
        if self._ops is not None:
            self._ops.tl_ops_stop()

    def start_ops(self) -> None:
        """Have operators and autograd's nodes noted from now on."""
        if self._ops is None and self.no_ops is None:
            try:
                self._ops = load(OPS)
            except NativeUnavailable as error:
                self.no_ops = str(error)
                return
            hooks = self._library.tl_hooks()
            self._ops.tl_ops_connect.argtypes = (ctypes.c_void_p,)
            self._ops.tl_ops_connect(hooks)
            self._library.tl_hooks_connected()
        if self._ops is not None:
            self._ops.tl_ops_start()


_recorder = functools.cache(TorchRecorder)
"""Returns the recorder of an allocator, of which there is one."""


def host_recorder(options: RecordOptions) -> HostRecorder:
    """Record what torch's CPU allocator hands out from now on.

    Raises:
        UsageError: ``TENSORLENS_COUNTER`` asks for a counter that cannot be had.
        NativeUnavailable: there is no native counter, or no stacks on this Python.
    """
    hooks = FrameworkHooks(cpu.CpuCounter.source, watch, _look, _paths)
    return HostRecorder(options, _recorder(cpu.recordable()), hooks)


def _look(roots: Sequence[CensusRoot], moment: Moment) -> tuple[TensorTable, ModulePath]:
    # of a backward pass in another thread the model is not near this one
    found = look(roots, near=moment != "backward" or not others_run())
    return look(roots, near=False) if moment == "end" and not _is_whole(found[0]) else found


def _is_whole(table: TensorTable) -> bool:
    """Tell whether all that the allocator has handed out is in a table, and held by something."""
    allocator = cpu.allocator()
    if allocator is None:
        return False
    names = {table.names[node] for node in table.name}
    return not (
        allocator.balance(table.storage, 0).unnamed
        or any(name.startswith(UNREACHABLE) for name in names)
    )


def _paths(roots: Sequence[CensusRoot]) -> ModulePath:
    return look(roots, near=True)[1]
