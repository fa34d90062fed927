"""A loop's steps in TensorFlow: the memory allocated after each, and the blocks that each left."""

from __future__ import annotations

from collections.abc import Sequence

from tensorlens.frameworks.base import StepFigures
from tensorlens.frameworks.host.loop_steps import Steps
from tensorlens.frameworks.retention import Holdings
from tensorlens.frameworks.tensorflow import cpu
from tensorlens.frameworks.tensorflow.counters import device_counter, used_devices
from tensorlens.frameworks.tensorflow.cpu import watch
from tensorlens.frameworks.tensorflow.leaks.holdings import TensorflowHoldings
from tensorlens.frameworks.tensorflow.leaks.retracing import Traces


class TensorflowSteps(Steps):
    """Follows a loop until it is closed; costs next to nothing while a step runs.

    Raises:
        UsageError: ``TENSORLENS_COUNTER`` asks for a counter that cannot be had.
    """

    def __init__(self) -> None:
        self._unwatch = watch()
        super().__init__(cpu.cpu_counter(), cpu.allocator(), cpu.fallback_reason())
        self._traces = Traces()

    def figures(self) -> StepFigures:
        """Return the allocated memory."""
        return self._figures({device: device_counter(device) for device in used_devices()})

    def notes(self) -> list[str]:
        """Return notes for the report on what could not be followed."""
        notes = super().notes() + self._traces.notes(self._stride * (len(self._begun) - 1))
        used = ", ".join(used_devices())
        if used:
            notes.append(
                f"{used}: only the sums are followed: TensorFlow does not tell of single blocks"
            )
        return notes

    def holdings(self, addresses: Sequence[int]) -> Holdings:
        """Search the heap once for the holders of the blocks at these addresses."""
        return TensorflowHoldings(addresses)

    def close(self) -> None:
        """Stop following."""
        self._unwatch()
