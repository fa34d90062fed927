"""The protocol between tensorlens and a framework: what an adapter answers, and in which types."""

from __future__ import annotations

import importlib
from array import array
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import CodeType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from tensorlens.errors import DeviceError, UsageError
from tensorlens.frameworks.advice import Words
from tensorlens.frameworks.compilers import CompilerWatch, TracedCode
from tensorlens.records.ledger import Ledger
from tensorlens.records.logs.origin import Recorded
from tensorlens.records.oom import KeptGraph, Request
from tensorlens.records.tensors import TensorTable

if TYPE_CHECKING:
    from tensorlens.frameworks.host.loop_steps import Steps

UNKNOWN = -1
"""Value of a figure that cannot be had."""

Reader = Callable[[], Sequence[int]]
"""Gives ``(allocated, peak since the previous read by anyone, reserved)`` in bytes."""


class Counter(Protocol):
    """The memory figures of one device."""

    device: str
    """torch's spelling: ``cpu``, ``cuda:0``, ``xpu:1``, ``mps``."""
    source: str
    """Name of the counter, for the report's header."""
    precision: str
    """How exact it is, for the report's header."""

    @property
    def missing(self) -> Mapping[str, str]:
        """``allocated``, ``peak`` or ``reserved`` to the reason it reads :data:`UNKNOWN`."""
        ...

    def reader(self) -> Reader:
        """Return a function that reads this device, for one thread alone.

        A read starts a new peak: the next peak, whoever reads it, is the highest since. It must
        not initialise the device, raise, or take longer than a few microseconds.
        """
        ...


class Adapter:
    """Questions to a framework that the program has imported.

    A framework's own class has what it can do; for the rest the answers here stand.
    """

    name: ClassVar[str]
    words: ClassVar[Words]
    """How advice is written for it."""

    def cpu_counter(self) -> Counter | None:
        """Return the counter of host memory, or None when the framework cannot count it.

        Raises:
            UsageError: ``TENSORLENS_COUNTER`` asks for one that cannot be had.
        """
        return None

    def has_accelerators(self) -> bool:
        """Return whether this build could ever use one; False saves asking at every line."""
        return False

    def used_devices(self) -> Sequence[str]:
        """Return the names of the accelerators in use so far, cheaply, initialising none."""
        return ()

    def device_counter(self, device: str) -> Counter:
        """Return the counter of an accelerator.

        Raises:
            DeviceError: no such device here; the text says which ones there are.
        """
        raise DeviceError(f"no device {device}: {self.name} has none but cpu")

    def device_name(self, device: Any) -> str:
        """Return torch's full spelling of a device, initialising nothing.

        Raises:
            DeviceError: it surely does not exist here; the text says which ones there are.
        """
        if str(device) == "cpu":
            return "cpu"
        raise DeviceError(f"no device {device}: {self.name} has none but cpu")

    def compiled_by(self, function: Any) -> str | None:
        """Return what compiles ``function`` away (``torch.compile``), or None."""
        return None

    def follow_code(self, code: CodeType) -> TracedCode | None:
        """Return what follows the graphs whose nodes the lines of ``code`` made.

        None where lines that run are all there is, or where single nodes cannot be told.
        """
        return None

    def forward_of(self, item: Any) -> str | None:
        """Return the attribute to profile when ``item`` is a module instance, else None."""
        return None

    def keep_compilers_out(self, functions: Sequence[Callable[..., Any]]) -> None:
        """Let compiled code call these as they are, and not be compiled with them."""

    def watch_compiler(
        self, callback: Callable[[Container[int] | None], None]
    ) -> CompilerWatch | None:
        """Have ``callback`` called before functions are read to compile them.

        Its argument is the identities of their code; None if it may be any.
        """
        return None

    def compiled_codes(self) -> set[int]:
        """Return the identities of code with which a call of something compiled may begin."""
        return set()

    def skip_code(self, code: CodeType, *, deep: bool) -> None:
        """Have compilers run frames of ``code`` as they are, and what they call (``deep``) too."""

    def watch(self) -> Callable[[], None]:
        """Count host memory and note which line allocates it, until what is returned is called.

        Raises:
            UsageError: ``TENSORLENS_COUNTER`` asks for a counter that cannot be had.
        """
        return _nothing

    def census(self, roots: Sequence[CensusRoot]) -> Findings:
        """Return every live tensor, named from the roots on, and each device's ledger."""
        return Findings(TensorTable(), {}, ())

    def record(self, options: RecordOptions) -> Mapping[str, Recorder]:
        """Record every allocation and free from now on; return each recorder by its name.

        Raises:
            UsageError: what is asked for cannot be recorded here; the text says why.
        """
        raise UsageError(f"the memory of {self.name} cannot be recorded")

    def follow(self) -> Steps:
        """Follow a loop's steps from now on.

        Raises:
            UsageError: ``TENSORLENS_COUNTER`` asks for a counter that cannot be had.
        """
        raise UsageError(f"the steps of {self.name} cannot be followed")

    def when_stepped(self, act: Callable[[], None]) -> Callable[[], None]:
        """Call ``act`` after each step of the program's first optimizer; return what ends that."""
        return _nothing

    def pinned(self) -> int:
        """Return the bytes of page-locked memory handed out; :data:`UNKNOWN` where none can be."""
        return UNKNOWN

    def failed_request(self, error: BaseException) -> Request | None:
        """Return what was asked for when ``error`` is a failed allocation, else None."""
        return None

    def graphs_kept(self) -> Sequence[KeptGraph]:
        """Return the parts of autograd's graph that keep something, oldest first."""
        return ()

    def notes(self) -> Sequence[str]:
        """Return lines for the report: a fallback that is in use, and why."""
        return ()


def deferred(place: str) -> Any:
    """Return a method of an adapter that is a function of some module, imported when asked for.

    Args:
        place: ``package.module:function``; it takes what the method takes, but for ``self``.
    """
    return _Deferred(place)


class _Deferred:
    def __init__(self, place: str) -> None:
        self._module, _, self._function = place.partition(":")

    def __get__(self, adapter: Adapter | None, kind: type | None = None) -> Any:
        return getattr(importlib.import_module(self._module), self._function)


@dataclass(frozen=True, slots=True)
class CensusRoot:
    """Where a census begins: a model, an optimizer, anything that holds tensors."""

    item: Any
    name: str | None = None
    """First part of its content's names; None leaves that to the framework."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings of a framework's census."""

    tensors: TensorTable
    ledger: Mapping[str, Ledger]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """Options of a recording."""

    limit: int = 1_000_000
    """How many events are kept; the oldest go first, and the highest instant stays known."""
    ops: bool = True
    """Whether operators and autograd's nodes are noted, without which there is no backward."""
    names: bool = True
    """Whether a census at the beginning and the end gives blocks their names."""
    roots: Callable[[], Sequence[CensusRoot]] = tuple
    """Gives what names begin with, as for :meth:`Adapter.census`."""


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Allocated memory after a step, in bytes."""

    allocated: Mapping[str, int]
    """By device; -1 is unknown."""
    reserved: Mapping[str, int]
    lines: Mapping[int, tuple[int, int]]
    """Number of the line that allocated to ``(blocks, bytes)`` that live. Each device has numbers
    of its own; the bytes that an accelerator's allocator adds to a block are included."""
    asked: Mapping[int, tuple[int, int]] | None = None
    """The same for accelerators, with the bytes that were asked for; None if not read."""


@dataclass(frozen=True, slots=True)
class LeftBlocks:
    """Blocks that steps left behind, as columns."""

    address: array[int] = field(default_factory=lambda: array("Q"))
    size: array[int] = field(default_factory=lambda: array("q"))
    """Bytes that were asked for, if known."""
    birth: array[int] = field(default_factory=lambda: array("i"))
    """Number of the line that allocated it; negative if unknown."""
    step: array[int] = field(default_factory=lambda: array("i"))
    """Number of the step that made it."""
    rounded_size: array[int] = field(default_factory=lambda: array("q"))
    """Bytes in the allocator's figures: an accelerator's rounds up."""

    def extend(self, others: LeftBlocks) -> None:
        """Add other blocks."""
        for each in fields(self):
            getattr(self, each.name).extend(getattr(others, each.name))


class Recorder(Protocol):
    """A recording that runs."""

    def mark(self, name: str) -> None:
        """Give this moment a name."""
        ...

    def read(self, end: bool) -> Recorded | None:
        """Return what was recorded so far; ``end`` stops recording, and is given once.

        None: its device was not used.
        """
        ...


def _nothing() -> None:
    return None
