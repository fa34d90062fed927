"""What torch has allocated after each step of a loop, and which blocks of which step are left."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tensorlens.frameworks.base import Left, StepFigures
from tensorlens.frameworks.building import NativeUnavailable
from tensorlens.frameworks.native.allocator import NativeAllocator
from tensorlens.frameworks.native.living import Living, LivingBlocks
from tensorlens.frameworks.survivors import Holdings
from tensorlens.frameworks.torch import cpu
from tensorlens.frameworks.torch.accelerators import (
    device_counter,
    has_accelerators,
    used_devices,
)
from tensorlens.frameworks.torch.census.watching import watch
from tensorlens.records.tensors import SourceLine

if TYPE_CHECKING:
    from tensorlens.frameworks.torch.leaks.device_steps import DeviceSteps, LeftOnDevices

_lock = threading.Lock()
_era = 0


class TorchSteps:
    """Follows a loop from its making until it is closed; costs next to nothing while a step runs.

    Raises:
        UsageError: ``TENSORLENS_COUNTER`` asks for a counter that cannot be had.
    """

    def __init__(self) -> None:
        self._unwatch = watch()
        counter = cpu.cpu_counter()
        self._counter = counter
        self._allocator = counter.allocator if isinstance(counter, cpu.CpuCounter) else None
        self._blocks = LivingBlocks(self._allocator) if self._allocator is not None else None
        self._lines: dict[int, SourceLine | None] = {-1: None}
        self._begun: list[int] = []
        """The eras in which this loop's steps began: several loops may be followed at once."""
        self._devices: DeviceSteps | None = None
        self._no_devices = ""
        try:
            self._devices = _accelerators(self._allocator)
        except NativeUnavailable as error:
            self._no_devices = str(error)
        except BaseException:
            self._unwatch()
            raise

    def begin(self) -> None:
        """Say that the next step begins: blocks from now on are of it; the first one is 0."""
        global _era
        with _lock:
            _era += 1
            self._begun.append(_era)
            if self._blocks is not None:
                self._blocks.set_era(_era)
            if self._devices is not None:
                self._devices.set_era(_era)

    def figures(self) -> StepFigures:
        """Return what is allocated now."""
        allocated: dict[str, int] = {}
        reserved: dict[str, int] = {}
        figures = self._counter.reader()()
        if self._allocator is not None:
            allocated["cpu"] = figures[0]
        reserved["cpu"] = figures[2]
        for device in used_devices():
            figures = device_counter(device).reader()()
            allocated[device], reserved[device] = figures[0], figures[2]
        lines: dict[int, tuple[int, int]] = {}
        if self._blocks is not None:
            totals = self._blocks.totals()
            lines = {
                birth: (blocks, nbytes)
                for birth, blocks, nbytes in zip(
                    totals.birth, totals.blocks, totals.bytes, strict=True
                )
            }
        if self._devices is None:
            return StepFigures(allocated, reserved, lines)
        lines.update(self._devices.lines())
        return StepFigures(allocated, reserved, lines, self._devices.asked())

    def left(self, since: int) -> Left | None:
        """Return the blocks of the steps from ``since`` on that live; None if nobody counts."""
        begun = self._begun[since]
        parts: list[Living | LeftOnDevices] = []
        if self._blocks is not None:
            parts.append(self._blocks.living(begun))
        if self._devices is not None:
            parts.append(self._devices.left(begun))
        if not parts:
            return None
        left = Left(array("Q"), array("q"), array("i"), array("i"))
        for part in parts:
            left.address.extend(part.address)
            left.size.extend(part.size)
            left.birth.extend(part.birth)
            left.step.extend(bisect_right(self._begun, era) - 1 for era in part.era)
        return left

    def line(self, birth: int) -> SourceLine | None:
        """Return the line of a number in the figures; None for what is not known."""
        if birth not in self._lines:
            if self.device(birth) != "cpu" and self._devices is not None:
                self._lines[birth] = self._devices.line(birth)
            elif self._allocator is not None:
                self._lines[birth] = SourceLine(*self._allocator.birth_line(birth))
        return self._lines.get(birth)

    def device(self, birth: int) -> str:
        """Return the device of the blocks with a number in the figures."""
        found = None if self._devices is None else self._devices.device(birth)
        return "cpu" if found is None else found

    def notes(self) -> list[str]:
        """Return lines for the report on what could not be followed."""
        if self._devices is not None:
            return self._devices.notes()
        if not used_devices():
            return []
        from tensorlens.frameworks.torch.leaks.device_steps import not_followed

        return not_followed(self._no_devices or "its allocator reports no blocks")

    def holdings(self, addresses: Sequence[int]) -> Holdings:
        """Look once for what keeps the blocks at these addresses alive."""
        from tensorlens.frameworks.torch.leaks import holdings

        return holdings.Holdings(addresses)

    def close(self) -> None:
        """Follow no longer."""
        if self._devices is not None:
            self._devices.close()
        self._unwatch()


def _accelerators(allocator: NativeAllocator | None) -> DeviceSteps | None:
    """Return what follows the accelerators; None where there is none that can be followed."""
    if not has_accelerators():
        return None
    # reads the heap's native part: not where it is not needed
    from tensorlens.frameworks.torch.leaks import device_steps

    if not device_steps.is_possible():
        return None
    return device_steps.follow(allocator is not None and _knows_lines(allocator))


def _knows_lines(allocator: NativeAllocator) -> bool:
    """Tell whether this Python's frames were found to be as expected."""
    try:
        allocator.watch_births()
    except NativeUnavailable:
        return False
    allocator.watch_births(False)
    return True
