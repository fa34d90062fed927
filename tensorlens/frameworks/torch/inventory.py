"""Lists what this torch can measure here, for ``tensorlens doctor``; starts no device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from tensorlens.errors import TensorlensError
from tensorlens.frameworks.base import Counter
from tensorlens.frameworks.torch import accelerators, cpu
from tensorlens.frameworks.torch.backends import KINDS, Backend
from tensorlens.frameworks.torch.census.scan import fallback_reason, open_scan
from tensorlens.frameworks.torch.native import COUNTER
from tensorlens.heap import not_native
from tensorlens.native.build import origin

FIGURES = ("allocated", "peak", "reserved")


@dataclass(frozen=True)
class Source:
    """One source of figures: the CPU, or one accelerator backend."""

    name: str
    """``cpu``, or a backend: ``cuda``."""
    built: bool = True
    """Whether this torch has it at all."""
    build: str = ""
    """Build or machine that has it, where this torch does not."""
    devices: int | None = None
    """How many devices this process sees; None where only initialising would tell."""
    source: str = ""
    precision: str = ""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Each figure that cannot be had, to the reason."""

    @property
    def figures(self) -> tuple[str, ...]:
        """The figures that can be had."""
        return tuple(each for each in FIGURES if self.built and each not in self.missing)

    @property
    def measurable(self) -> bool:
        """Whether a line's bytes can be counted there."""
        return self.devices != 0 and "allocated" in self.figures


@dataclass(frozen=True)
class Inventory:
    """One torch installation."""

    version: str
    sources: tuple[Source, ...]
    native: bool
    """Whether the native CPU counter is in place."""
    fallback: str | None
    """Why the native counter could not be had, and what to do; None when it was not wanted."""
    origin: str
    """Where the native parts come from: the package, or a compiler and a folder."""
    slow: str | None
    """Why snapshots are taken from Python, many times slower; None where they are not."""
    no_births: str | None
    """Why it is not known which line allocates a tensor; None where it is."""


def take() -> Inventory:
    """Look at the imported torch; builds the native CPU counter if it was not yet.

    No accelerator is initialised, and ``torch.cuda.is_initialized()`` stays as it was.
    """
    sources = [_host(), *map(_accelerator, KINDS)]
    open_scan().close()
    return Inventory(
        version=str(torch.__version__),
        sources=tuple(sources),
        native=sources[0].source == cpu.CpuCounter.source,
        fallback=_reason(cpu.fallback_reason),
        origin=origin(COUNTER),
        slow=fallback_reason() or not_native() or None,
        no_births=_reason(_no_births),
    )


def _reason(ask: Callable[[], str | None]) -> str | None:
    try:
        return ask()
    except TensorlensError as error:
        return str(error)


def _no_births() -> str | None:
    allocator = cpu.allocator()
    if allocator is None:
        return "the native CPU counter is not in use"
    allocator.watch_births()
    allocator.watch_births(False)
    return None


def _host() -> Source:
    try:
        counter = cpu.cpu_counter()
    except TensorlensError as error:
        return Source("cpu", missing=dict.fromkeys(FIGURES, str(error)))
    return _described("cpu", 1, counter)


def _accelerator(kind: type[Backend]) -> Source:
    backend = accelerators.backends.get(kind.name)
    if backend is None:
        return Source(kind.name, built=False, build=kind.build)
    try:
        devices = backend.visible()
    except Exception:  # torch's own look at the driver failed: it cannot be known
        devices = None
    return _described(kind.name, devices, accelerators.DeviceCounter(backend, 0))


def _described(name: str, devices: int | None, counter: Counter) -> Source:
    return Source(
        name,
        devices=devices,
        source=counter.source,
        precision=counter.precision,
        missing=dict(counter.missing),
    )
