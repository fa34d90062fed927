"""torch's memory after each step of a loop, and the blocks that each step left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tensorlens.frameworks.base import LeftBlocks, StepFigures
from tensorlens.frameworks.host.allocator import NativeAllocator
from tensorlens.frameworks.host.steps import HostSteps
from tensorlens.frameworks.survivors import Holdings
from tensorlens.frameworks.torch import cpu
from tensorlens.frameworks.torch.accelerators import (
    device_counter,
    has_accelerators,
    used_devices,
)
from tensorlens.frameworks.torch.cpu import watch
from tensorlens.native.build import NativeUnavailable
from tensorlens.records.tensors import SourceLine

if TYPE_CHECKING:
    from tensorlens.frameworks.torch.leaks.device_steps import DeviceSteps


class TorchSteps(HostSteps):
    """Follows a loop from its making until it is closed; costs next to nothing while a step runs.

    Raises:
        UsageError: ``TENSORLENS_COUNTER`` asks for a counter that cannot be had.
    """

    def __init__(self) -> None:
        self._unwatch = watch()
        super().__init__(cpu.cpu_counter(), cpu.allocator())
        self._devices: DeviceSteps | None = None
        self._no_devices = ""
        try:
            self._devices = _accelerators(self._allocator)
        except NativeUnavailable as error:
            self._no_devices = str(error)
        except BaseException:
            self._unwatch()
            raise

    def figures(self) -> StepFigures:
        """Return what is allocated now."""
        found = self._figures({device: device_counter(device) for device in used_devices()})
        if self._devices is None:
            return found
        lines = {**found.lines, **self._devices.lines()}
        return StepFigures(found.allocated, found.reserved, lines, self._devices.asked())

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

    def _set_era(self, era: int) -> None:
        super()._set_era(era)
        if self._devices is not None:
            self._devices.set_era(era)

    def _living(self, since: int) -> LeftBlocks | None:
        found = super()._living(since)
        if self._devices is None:
            return found
        left = self._devices.left(since)
        if found is None:
            return left
        found.extend(left)
        return found

    def _line(self, birth: int) -> SourceLine | None:
        if self._devices is not None and self.device(birth) != "cpu":
            return self._devices.line(birth)
        return super()._line(birth)


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
