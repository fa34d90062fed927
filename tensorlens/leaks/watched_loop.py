"""A loop that is watched: the frameworks that follow it, its span, and samples after its steps.

Each framework numbers its own lines and knows its own tensors, and is judged by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tensorlens.frameworks.base import UNKNOWN, Adapter, StepFigures
from tensorlens.frameworks.host.loop_steps import Steps
from tensorlens.frameworks.host.process_memory import child_processes, heap_now, resident
from tensorlens.frameworks.registry import ask, unusable_notes
from tensorlens.frameworks.retention import GrowingGraph, LeftBlock
from tensorlens.guards import is_from_a_handler

NO_BLOCKS = "the counter of host memory that is in use does not know blocks"


class FollowedLoop:
    """Follows a loop's steps from now on, in all frameworks that can.

    Raises:
        TensorlensError: no framework can; the text says why.
    """

    def __init__(self, adapters: Sequence[Adapter]) -> None:
        with ExitStack() as stack:

            def follow(adapter: Adapter) -> Steps:
                steps = adapter.follow()
                stack.callback(steps.close)
                return steps

            answers, failed = ask(adapters, follow)
            stack.pop_all()
        self.parts = {adapter.name: steps for adapter, steps in answers}
        """Steps by framework."""
        self._adapters = tuple(adapters)
        self._notes = [f"{name} is not followed: {text}" for name, text in failed.items()]
        self._notes += unusable_notes()

    def begin(self) -> None:
        """Begin the next step."""
        for part in self.parts.values():
            part.begin()

    def merge(self) -> None:
        """Count each two steps as one from now on, earlier ones too."""
        for part in self.parts.values():
            part.merge()

    def figures(self) -> tuple[StepFigures, ...]:
        """Return the allocated memory of each framework."""
        return tuple(part.figures() for part in self.parts.values())

    def allocated(self) -> Mapping[str, int]:
        """Return the bytes that are allocated now, by device."""
        return total_figures(self.figures()).allocated

    def host_sample(self, step: int, allocated: Mapping[str, int]) -> HostSample:
        """Return the host's memory after a step, when so many bytes are allocated by device."""
        heap = heap_now()
        in_use = resident() if heap is None else heap[0]
        if in_use != UNKNOWN:
            in_use -= max(allocated.get("cpu", 0), 0)
        objects = sys.getallocatedblocks()
        return HostSample(step, in_use, objects, self.pinned(), *child_processes())

    def pinned(self) -> int:
        """Return the bytes of page-locked memory that all frameworks together handed out."""
        known = [nbytes for each in self._adapters if (nbytes := each.pinned()) >= 0]
        return sum(known) if known else UNKNOWN

    def growing_graph(self, made: int) -> GrowingGraph | None:
        """Return the live tensor whose autograd graph grew most in ``made`` steps, if one did.

        A framework that fails is passed over.
        """
        for part in self.parts.values():
            try:
                found = part.growing_graph(made)
                if found is not None:
                    return found
            except Exception as error:
                if is_from_a_handler(error):
                    raise
        return None

    def notes(self) -> list[str]:
        """Return notes for the report on what could not be followed."""
        own = (note for part in self.parts.values() for note in part.notes())
        return [*dict.fromkeys([*own, *self._notes])]

    def close(self) -> None:
        """Stop following."""
        for part in self.parts.values():
            part.close()


def total_figures(figures: Sequence[StepFigures]) -> StepFigures:
    """Return the sums of all frameworks' figures by device, without lines."""
    if len(figures) == 1:
        return figures[0]
    return StepFigures(
        allocated=_sums([each.allocated for each in figures]),
        reserved=_sums([each.reserved for each in figures], once="cpu"),
        lines={},
    )


def _sums(parts: Sequence[Mapping[str, int]], once: str = "") -> dict[str, int]:
    """Return sums by device, unknown if one is; of the device ``once``, the first known figure."""
    found: dict[str, int] = {}
    for part in parts:
        for device, nbytes in part.items():
            known = found.get(device)
            if known is None or (device == once and known < 0):
                found[device] = nbytes
            elif device != once:
                found[device] = known + nbytes if known >= 0 <= nbytes else UNKNOWN
    return found


@dataclass(frozen=True, slots=True)
class Span:
    """Number of steps of a watched loop, and which of them are judged.

    Several steps of a long loop are looked at as one stretch. The ``step`` of a block is the number
    of its stretch, the ``step`` of a :class:`HostSample` that of a step; all rates are per step.
    """

    made: int
    """Number of steps that ended, the warm-up included."""
    warmup_steps: int
    """Number of steps of the warm-up."""
    stride: int = 1
    """Number of steps in a stretch."""
    is_collected: bool = True
    """Whether the collector is on, or has run since the warm-up."""

    @property
    def stretches(self) -> int:
        """Number of stretches, the warm-up included."""
        return self.made // self.stride

    @property
    def warmup(self) -> int:
        """Number of stretches that have steps of the warm-up."""
        return -(-self.warmup_steps // self.stride)

    @property
    def judged(self) -> range:
        """The stretches after the warm-up, without the last, whose blocks may be in use."""
        return range(self.warmup, self.stretches - 1)

    @property
    def before_last(self) -> range:
        """All stretches but the last."""
        return range(self.stretches - 1)

    @property
    def judged_steps(self) -> int:
        """Number of steps that are judged."""
        return len(self.judged) * self.stride

    def words(self, count: int) -> str:
        """Return ``5 steps``, or ``128 stretches of 8 steps``."""
        return f"{count} steps" if self.stride == 1 else f"{count} stretches of {self.stride} steps"


@dataclass(frozen=True, slots=True)
class HostSample:
    """The host's memory after a step; :data:`UNKNOWN` for figures that are not available."""

    step: int
    """Number of steps that had ended."""
    heap: int
    """Bytes of the C heap in use, or of the resident set if the C library does not count them, less
    those that frameworks' CPU allocators have handed out."""
    objects: int
    """Blocks of Python's own allocator."""
    pinned: int = UNKNOWN
    """Bytes of page-locked memory that a framework has handed out."""
    children: int = UNKNOWN
    """Number of child processes."""
    children_bytes: int = UNKNOWN
    """Bytes of their resident sets."""


@dataclass(frozen=True, slots=True)
class LoopSamples:
    """Samples of a loop in one framework."""

    span: Span
    figures: tuple[StepFigures, ...]
    """Figures before the first stretch, and after each one."""
    steps: Steps
    left: Sequence[LeftBlock] = ()
    """Blocks that live at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedLoop:
    """Samples of a loop in all frameworks."""

    span: Span
    figures: tuple[StepFigures, ...]
    """Sums of all frameworks, before the first stretch and after each one."""
    steps: FollowedLoop
    parts: Mapping[str, LoopSamples]
    """Samples by framework."""
    host: Sequence[HostSample]

    def allocated(self, device: str) -> list[int]:
        """Return the allocated bytes of a device from the end of the warm-up on."""
        return [each.allocated.get(device, 0) for each in self.figures[self.span.warmup :]]

    def reserved(self, device: str) -> list[int]:
        """Return the reserved bytes of a device from the end of the warm-up on."""
        return [each.reserved.get(device, 0) for each in self.figures[self.span.warmup :]]
