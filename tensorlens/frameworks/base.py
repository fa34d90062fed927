"""The protocol between tensorlens and a framework: questions to an adapter, and their types.

At its end are the words for advice: what a person has to write in each framework.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from tensorlens.errors import DeviceError, UsageError
from tensorlens.frameworks.compilers import CompilerWatch, TracedCode
from tensorlens.records.ledger import Ledger
from tensorlens.records.logs.events import Phase, Recorded
from tensorlens.records.tensors import SourceLine, TensorTable

if TYPE_CHECKING:
    from tensorlens.frameworks.host.loop_steps import Steps

UNKNOWN = -1
"""Value of an unknown figure."""

Reader = Callable[[], Sequence[int]]
"""Returns ``(allocated, peak since the previous read by anyone, reserved)`` in bytes."""


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
        """Return a function that reads this device, to be used by one thread.

        A read starts a new peak for all readers. It must not initialise the device, raise, or take
        longer than a few microseconds.
        """
        ...


class Adapter:
    """Questions to a framework that the program has imported.

    A subclass answers what its framework supports; the methods here are the defaults.
    """

    name: ClassVar[str]
    words: ClassVar[AdviceWords]
    """The framework's calls in advice."""

    def cpu_counter(self) -> Counter | None:
        """Return the counter of host memory, or None when the framework cannot count it.

        Raises:
            UsageError: ``TENSORLENS_COUNTER`` asks for one that is not available.
        """
        return None

    def has_accelerators(self) -> bool:
        """Return whether this build could ever use an accelerator; if not, lines need not ask."""
        return False

    def used_devices(self) -> Sequence[str]:
        """Return the names of the accelerators in use so far; fast, and initialises none."""
        return ()

    def device_counter(self, device: str) -> Counter:
        """Return the counter of an accelerator.

        Raises:
            DeviceError: no such device here; the text lists those there are.
        """
        raise DeviceError(f"no device {device}: {self.name} has none but cpu")

    def device_name(self, device: Any) -> str:
        """Return torch's full spelling of a device, initialising nothing.

        Raises:
            DeviceError: it certainly does not exist here; the text lists those there are.
        """
        if str(device) == "cpu":
            return "cpu"
        raise DeviceError(f"no device {device}: {self.name} has none but cpu")

    def compiled_by(self, function: Any) -> str | None:
        """Return the compiler of ``function`` (``torch.compile``), or None."""
        return None

    def follow_code(self, code: CodeType) -> TracedCode | None:
        """Return a follower of the graphs whose nodes were made by lines of ``code``.

        None if the framework has no such graphs, or does not report single nodes.
        """
        return None

    def forward_of(self, item: Any) -> str | None:
        """Return the attribute to profile if ``item`` is a module instance, else None."""
        return None

    def keep_compilers_out(self, functions: Sequence[Callable[..., Any]]) -> None:
        """Have compiled code call these functions rather than compile them too."""

    def watch_compiler(
        self, callback: Callable[[Container[int] | None], None]
    ) -> CompilerWatch | None:
        """Have ``callback`` called before functions are read to compile them.

        Its argument is the identities of their code; None if it may be any.
        """
        return None

    def compiled_codes(self) -> set[int]:
        """Return the identities of the code that a call of something compiled may enter first."""
        return set()

    def skip_code(self, code: CodeType, *, deep: bool) -> None:
        """Exclude frames of ``code`` from compilation, with ``deep`` their callees too."""

    def watch(self) -> Callable[[], None]:
        """Count host memory and its birth lines from now on; return a function that stops.

        Raises:
            UsageError: ``TENSORLENS_COUNTER`` asks for a counter that is not available.
        """
        return _nothing

    def census(self, roots: Sequence[CensusRoot]) -> Findings:
        """Return all live tensors, named from the roots, and each device's ledger."""
        return Findings(TensorTable(), {}, ())

    def record(self, options: RecordOptions) -> Mapping[str, Recorder]:
        """Start recording allocations and frees; return each recorder by its name.

        Raises:
            UsageError: nothing can be recorded here; the text says why.
        """
        raise UsageError(f"the memory of {self.name} cannot be recorded")

    def follow(self) -> Steps:
        """Start following a loop's steps.

        Raises:
            UsageError: ``TENSORLENS_COUNTER`` asks for a counter that is not available.
        """
        raise UsageError(f"the steps of {self.name} cannot be followed")

    def when_stepped(self, act: Callable[[], None]) -> Callable[[], None]:
        """Call ``act`` after each step of the first optimizer; return a function that stops it."""
        return _nothing

    def pinned(self) -> int:
        """Return the bytes of page-locked memory handed out; :data:`UNKNOWN` without support."""
        return UNKNOWN

    def failed_request(self, error: BaseException) -> Request | None:
        """Return the request if ``error`` is a failed allocation, else None."""
        return None

    def graphs_kept(self) -> Sequence[KeptGraph]:
        """Return the parts of autograd's graph that keep memory, oldest first."""
        return ()

    def notes(self) -> Sequence[str]:
        """Return notes for a report, such as the reason for a fallback."""
        return ()


def deferred(place: str) -> Any:
    """Return a method of an adapter that is a function of a module, imported on first use.

    Args:
        place: ``package.module:function``; the function has the method's parameters but ``self``.
    """
    return _Deferred(place)


class _Deferred:
    def __init__(self, place: str) -> None:
        self._module, _, self._function = place.partition(":")

    def __get__(self, adapter: Adapter | None, kind: type | None = None) -> Any:
        return getattr(importlib.import_module(self._module), self._function)


@dataclass(frozen=True, slots=True)
class CensusRoot:
    """An object where a census begins: a model, an optimizer, any holder of tensors."""

    item: Any
    name: str | None = None
    """First part of the names inside it; None leaves it to the framework."""


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
    """Number of events to keep; the oldest are dropped first, but their peak is kept."""
    ops: bool = True
    """Whether to note operators and autograd's nodes, by which backward is known."""
    names: bool = True
    """Whether to name blocks, by censuses: at beginning and end, on the host at backward too."""
    roots: Callable[[], Sequence[CensusRoot]] = tuple
    """Returns the roots of names, as for :meth:`Adapter.census`."""


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Allocated memory after a step, in bytes."""

    allocated: Mapping[str, int]
    """By device; -1 is unknown."""
    reserved: Mapping[str, int]
    lines: Mapping[int, tuple[int, int]]
    """Number of a line to ``(blocks, bytes)`` of its live allocations. Each device has numbers of
    its own; the bytes that an accelerator's allocator adds to a block are included."""
    asked: Mapping[int, tuple[int, int]] | None = None
    """The same for lines of accelerators, with the requested bytes; None if not read."""


@dataclass(frozen=True, slots=True)
class Request:
    """A refused request for memory."""

    device: str | None
    """Device as torch spells it; None if the error does not tell."""
    nbytes: int | None
    """Requested bytes; None if the error does not tell."""
    text: str
    """The error's own words, one line."""
    exact: bool = True
    """Whether ``nbytes`` is exact: an accelerator's error rounds it to two decimals of a unit."""
    line: SourceLine | None = None
    """Requesting line; in backward the forward line, if a recording knows it."""
    source: str | None = None
    """The text of that line."""
    module: str | None = None
    """Path of the running module, if recorded."""
    op: str | None = None
    """Outermost requesting operator, if recorded."""
    phase: Phase | None = None


@dataclass(frozen=True, slots=True)
class KeptGraph:
    """A connected component of autograd's graph, and the storages that it saved for backward."""

    newest: int
    """autograd's number of its newest node; later nodes have higher numbers."""
    saved: frozenset[int]
    """Addresses of the storages that its nodes saved."""
    holders: tuple[int, ...]
    """Addresses of the storages of the tensors in Python that keep it alive."""


class Recorder(Protocol):
    """A running recording."""

    def read(self, end: bool) -> Recorded | None:
        """Return the recording so far; ``end`` stops it, and may be true once.

        None if its device was not used.
        """
        ...


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class AdviceWords:
    """The calls of one framework that advice tells a person to write."""

    number: str | None
    """Code that makes a number of the tensor ``{}``; None if the advice is for graphs alone."""
    copy: str
    """Code that copies a view's part, so that the rest is freed."""
    concatenation: str
    unseen: str | None
    """Possible holders of memory that nothing in Python holds."""
    gradients: str
    """Code that frees gradients."""
    activations: str
    """Changes that reduce memory kept for backward."""
    model: str | None = None
    """Advice if the runtime keeps compiled models."""


TORCH = AdviceWords(
    number=None,
    copy="a .clone()",
    concatenation="torch.cat",
    unseen=None,
    gradients="zero_grad(set_to_none=True) before the forward pass, unless they add up",
    activations=(
        "a smaller batch, torch.utils.checkpoint, autocast; torch.no_grad() where no backward "
        "follows"
    ),
)
TENSORFLOW = AdviceWords(
    number="float({})",
    # tf.identity() shares the memory
    copy=".numpy(), a copy,",
    concatenation="tf.concat",
    unseen="TensorFlow's runtime: a graph's constants, a queue, a table, buffers of a dataset",
    gradients="del the list of them before the next forward pass, unless they add up",
    activations=(
        "a smaller batch, keras.remat() or tf.recompute_grad(), the mixed_float16 or "
        "mixed_bfloat16 policy; no GradientTape where no gradients follow"
    ),
    model=(
        "make the model once, before the loop, and set its weights anew: the functions that were "
        "compiled for it keep its variables, also after clear_session() and gc.collect(); or make "
        "each model in a process of its own"
    ),
)
