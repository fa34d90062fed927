"""The accelerators of torch: which are in use, what counts them, which exist.

Every function here can be asked at any time: none initialises a device, so that a program that
only forks, or chooses its device later, runs as without the profiler.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from typing import Any

import torch as _torch

from tensorlens.errors import DeviceError
from tensorlens.frameworks.base import UNKNOWN, Counter, Reader
from tensorlens.frameworks.torch.backends import KINDS, Backend
from tensorlens.guards import first_line
from tensorlens.interpreter import reentrant_lock

_UNREADABLE = (UNKNOWN, UNKNOWN, UNKNOWN)
_NOTHING_YET = (0, 0, 0)
_SPELLING = re.compile(r"([a-z]+)(?::(\d+))?")
_LOOSE = re.compile(r"/?(?:device:)?(?:gpu|cuda|hip|rocm|nvidia)[:_ ]?(\d*)", re.IGNORECASE)
_NAMES = ("cpu", *(kind.name for kind in KINDS))
_ALONE = ("cpu", *(kind.name for kind in KINDS if not kind.is_numbered))
"""Kinds of one device, which has no number."""


class DeviceCounter:
    """The memory figures of one accelerator, as torch's own allocator counts them."""

    def __init__(self, backend: Backend, index: int) -> None:
        self._backend = backend
        self._index = index
        self._gave_up = False
        self._missing = dict(backend.missing)
        # each figure that reads UNKNOWN, to the reason; grows when a read fails
        self.missing: Mapping[str, str] = self._missing
        self.device = backend.spell(index)
        self.source, self.precision = backend.describe()

    def reader(self) -> Reader:
        """Return the function that reads this device; any thread may call it.

        It gives zeros until the program initialises the backend, since nothing has been handed
        out by then, and UNKNOWN for all three when torch cannot read (a lost context, an
        allocator without statistics, a child forked after initialisation).
        """
        self._backend.install()
        return self._read

    def _read(self) -> tuple[int, int, int]:
        backend = self._backend
        try:
            if backend.ready():
                return _UNREADABLE if self._gave_up else backend.read(self._index)
            if backend.forked():
                return self._unreadable(f"{backend.name} cannot be used in a forked process")
            return _NOTHING_YET
        except Exception as error:  # whatever torch raises is no matter of the user's line
            reason = first_line(error)
            # raising costs tens of microseconds: an allocator without statistics is asked once
            self._gave_up = "does not yet support" in reason
            return self._unreadable(reason)

    def _unreadable(self, reason: str) -> tuple[int, int, int]:
        for figure in ("allocated", "peak", "reserved"):
            self._missing.setdefault(figure, reason)
        return _UNREADABLE


class Accelerators:
    """Accelerators of this process's torch.

    Args:
        torch: the torch module, or what stands in for it in a test.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.backends = {kind.name: kind(torch) for kind in KINDS if kind.is_built(torch)}
        self._looked_at = tuple(self.backends.values())
        self._counters: dict[str, DeviceCounter] = {}
        self.forget_use()

    def forget_use(self) -> None:
        """Start over with no device in use: what a forked child needs."""
        self._used: list[str] = []
        self._unused: dict[str, list[int]] = {}
        self._lock = reentrant_lock()

    def has_accelerators(self) -> bool:
        """Tell whether this torch was built with any: where not, none can ever be in use."""
        return bool(self.backends)

    def used_devices(self) -> list[str]:
        """Return the names of the accelerators in use so far, initialising none.

        It is the same list object, not to be changed, until one more device is in use.
        """
        for backend in self._looked_at:
            unused = self._unused.get(backend.name)
            if unused is None or unused:
                self._look_again(backend, unused)
        return self._used

    def _look_again(self, backend: Backend, unused: list[int] | None) -> None:
        try:
            if unused is None:
                if not backend.ready():
                    return
                unused = self._unused[backend.name] = list(range(backend.count()))
            in_use = backend.in_use
            found = [index for index in unused if in_use(index)]
        except Exception:  # a lost context: what was known to be in use stays so
            return
        if found:
            with self._lock:
                names = [n for index in found if (n := backend.spell(index)) not in self._used]
                self._used = [*self._used, *names]
            self._unused[backend.name] = [index for index in unused if index not in found]

    def device_counter(self, name: object) -> Counter:
        """Return the counter of an accelerator; the same one for every spelling of it.

        Raises:
            DeviceError: the device surely does not exist here, or is the CPU.
        """
        device = self.canonical(name)
        if device == "cpu":
            raise DeviceError("cpu is no accelerator: its memory has a counter of its own")
        self._check(device)
        counter = self._counters.get(device)
        if counter is None:
            kind, index = kind_and_index(device)
            counter = self._counters.setdefault(device, DeviceCounter(self.backends[kind], index))
        return counter

    def device_name(self, name: object) -> str:
        """Return torch's full spelling of a device that may exist here; nothing is initialised.

        Raises:
            DeviceError: one line: no device's name, a backend this torch was not built with,
                or a number beyond the last device where the count can be known.
        """
        device = self.canonical(name)
        self._check(device)
        return device

    def _check(self, device: str) -> None:
        if device == "cpu":
            return
        kind, index = kind_and_index(device)
        backend = self.backends.get(kind)
        if backend is None:
            version = getattr(self._torch, "__version__", "")
            built = (
                f"was built for {', '.join(self.backends)}" if self.backends else "is a CPU build"
            )
            raise DeviceError(f"{device}: this torch ({version}) {built}")
        try:
            count = backend.visible()
        except Exception:  # where torch cannot tell, the device may exist
            return
        if count is None or index < count:
            return
        if not count:
            raise DeviceError(f"{device}: no {kind} device is visible to this process")
        last = backend.spell(count - 1)
        here = last if count == 1 else f"{backend.spell(0)} to {last}"
        raise DeviceError(f"{device}: no such device here, there is {here}")

    def canonical(self, name: object) -> str:
        """Return torch's full spelling of a device: ``cpu``, ``cuda:0``, ``xpu:1``, ``mps``.

        A bare backend is its current device (the first before it is initialised), an int a
        CUDA index; a ``torch.device`` is taken too.

        Raises:
            DeviceError: it names no device.
        """
        if isinstance(name, int) and not isinstance(name, bool):
            if name < 0:
                raise DeviceError(f"{name} is no device: CUDA devices count from 0")
            return f"cuda:{name}"
        text = str(name).strip()
        match = _SPELLING.fullmatch(text)
        if match is None or match[1] not in _NAMES:
            loose = _LOOSE.fullmatch(text)
            *others, last = ("cpu", *(kind.spell(0) for kind in KINDS))
            known = f"{', '.join(others)} or {last}" if loose is None else f"cuda:{loose[1] or 0}"
            raise DeviceError(f"{text or repr(text)} is no device: write {known}")
        kind, index = match.groups()
        if kind in _ALONE:
            if index not in (None, "0"):
                raise DeviceError(f"{text}: there is only one {kind} device")
            return str(kind)
        if index is None:
            index = 0
            # a lost context; the first device is what torch starts with
            with contextlib.suppress(Exception):
                index = self.backends[kind].current()
        return f"{kind}:{int(index)}"


def pinned() -> int:
    """Return the bytes of page-locked memory handed out, CUDA being in use; else UNKNOWN."""
    figures = getattr(_torch.cuda, "host_memory_stats", None)
    if figures is None or not _torch.cuda.is_initialized():
        return UNKNOWN
    return int(figures().get("active_bytes.current", UNKNOWN))


def kind_and_index(device: str) -> tuple[str, int]:
    """Return the two parts of a device's name."""
    kind, _, index = device.partition(":")
    return kind, int(index or 0)


here = Accelerators(_torch)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=here.forget_use)

has_accelerators = here.has_accelerators
used_devices = here.used_devices
device_counter = here.device_counter
device_name = here.device_name
backends = here.backends
