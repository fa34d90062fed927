"""Accelerators of torch: those in use, their counters, and the spelling of their names.

Nothing here initialises a device, so a program that forks, or chooses its device later, runs as
without the profiler.
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
_BEFORE_USE = (0, 0, 0)
_SPELLING = re.compile(r"([a-z]+)(?::(\d+))?")
_LOOSE = re.compile(r"/?(?:device:)?(?:gpu|cuda|hip|rocm|nvidia)[:_ ]?(\d*)", re.IGNORECASE)
_NAMES = ("cpu", *(kind.name for kind in KINDS))
_UNNUMBERED = ("cpu", *(kind.name for kind in KINDS if not kind.is_numbered))
"""Backends with a single device, spelled without a number."""


class DeviceCounter:
    """The memory figures of one accelerator, as torch's own allocator counts them."""

    def __init__(self, backend: Backend, index: int) -> None:
        self._backend = backend
        self._index = index
        self._gave_up = False
        self._missing = dict(backend.missing)
        # reason for each figure that reads UNKNOWN; a failed read adds to it
        self.missing: Mapping[str, str] = self._missing
        self.device = backend.spell(index)
        self.source, self.precision = backend.describe()

    def reader(self) -> Reader:
        """Return the function that reads this device; any thread may call it.

        The figures are 0 until the program initialises the backend, and UNKNOWN when torch cannot
        read them: a lost context, an allocator without statistics, a child forked after
        initialisation.
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
            return _BEFORE_USE
        except Exception as error:  # no error of torch may reach the user's line
            reason = first_line(error)
            # raising costs tens of microseconds: ask an allocator without statistics only once
            self._gave_up = "does not yet support" in reason
            return self._unreadable(reason)

    def _unreadable(self, reason: str) -> tuple[int, int, int]:
        for figure in ("allocated", "peak", "reserved"):
            self._missing.setdefault(figure, reason)
        return _UNREADABLE


class Accelerators:
    """Accelerators of this process's torch.

    Args:
        torch: the torch module, or a test's stand-in.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.backends = {kind.name: kind(torch) for kind in KINDS if kind.is_built(torch)}
        self._counters: dict[str, DeviceCounter] = {}
        self.forget_use()

    def forget_use(self) -> None:
        """Forget which devices are in use; called in a forked child."""
        self._used: list[str] = []
        self._unused: dict[str, list[int]] = {}
        self._lock = reentrant_lock()

    def has_accelerators(self) -> bool:
        """Return whether this torch was built with any accelerator."""
        return bool(self.backends)

    def used_devices(self) -> list[str]:
        """Return the names of the accelerators in use so far, initialising none.

        The same list object is returned until one more device is in use; do not change it.
        """
        for backend in self.backends.values():
            unused = self._unused.get(backend.name)
            if unused is None or unused:
                self._add_used(backend, unused)
        return self._used

    def _add_used(self, backend: Backend, unused: list[int] | None) -> None:
        try:
            if unused is None:
                if not backend.ready():
                    return
                unused = self._unused[backend.name] = list(range(backend.count()))
            in_use = backend.in_use
            found = [index for index in unused if in_use(index)]
        except Exception:  # a lost context: devices known to be in use stay so
            return
        if found:
            with self._lock:
                names = [n for index in found if (n := backend.spell(index)) not in self._used]
                self._used = [*self._used, *names]
            self._unused[backend.name] = [index for index in unused if index not in found]

    def device_counter(self, name: object) -> Counter:
        """Return the counter of an accelerator; the same one for every spelling of it.

        Raises:
            DeviceError: the device certainly does not exist here, or is the CPU.
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
            DeviceError: with a one-line text: no device has this name, this torch was built
                without the backend, or the number is beyond the last device, if that is known.
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
        except Exception:  # torch cannot tell: the device may exist
            return
        if count is None or index < count:
            return
        if not count:
            raise DeviceError(f"{device}: no {kind} device is visible to this process")
        last = backend.spell(count - 1)
        existing = last if count == 1 else f"{backend.spell(0)} to {last}"
        raise DeviceError(f"{device}: no such device here, there is {existing}")

    def canonical(self, name: object) -> str:
        """Return torch's full spelling of a device: ``cpu``, ``cuda:0``, ``xpu:1``, ``mps``.

        A name without a number means the backend's current device, the first one before it is
        initialised; an int is the number of a CUDA device. A ``torch.device`` is accepted too.

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
        if kind in _UNNUMBERED:
            if index not in (None, "0"):
                raise DeviceError(f"{text}: there is only one {kind} device")
            return str(kind)
        if index is None:
            index = 0
            # without the backend or its context, the first device: a new process starts with it
            with contextlib.suppress(Exception):
                index = self.backends[kind].current()
        return f"{kind}:{int(index)}"


def pinned() -> int:
    """Return the allocated bytes of CUDA's page-locked memory; UNKNOWN if torch does not tell."""
    figures = getattr(_torch.cuda, "host_memory_stats", None)
    if figures is None or not _torch.cuda.is_initialized():
        return UNKNOWN
    return int(figures().get("active_bytes.current", UNKNOWN))


def kind_and_index(device: str) -> tuple[str, int]:
    """Split a device's name into its backend and its number."""
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
