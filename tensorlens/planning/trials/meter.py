"""The peaks of a run that is measured: those of the CPU, to which a framework adds its devices'."""

from __future__ import annotations

from tensorlens.frameworks.base import Counter
from tensorlens.planning.trials.host_limits import peak_resident
from tensorlens.planning.trials.jobs import Measured


class Meter:
    """Takes the marks of steps, and reads the peaks.

    Args:
        counter: the CPU's.
        device: whose figures are wanted; None: the accelerator with the highest peak, or the CPU
            where none is used.
    """

    def __init__(self, counter: Counter, device: str | None) -> None:
        self._device = "cuda:0" if device == "cuda" else device
        self._counter = counter
        self._read = counter.reader()
        self._before = self._read()[0]
        self._setup: dict[str, int] = {}
        self._first_step = 0
        self._peaks: list[int] = []
        """Of the CPU, from mark to mark; those from ``_first_step`` on are of steps."""

    def wait(self) -> None:
        """Return when devices have done all that they were asked to."""
        raise NotImplementedError

    def mark(self, name: str, row: int | None = None) -> None:
        """Note the peak so far, and of the first step what is there when it begins."""
        self.wait()
        allocated, peak, _ = self._read()
        self._peaks.append(peak - self._before)
        of_devices = self._device_bytes()
        if name == "step 1":
            self._setup = {"cpu": allocated - self._before, **of_devices}
            self._first_step = len(self._peaks)

    def forget_marks(self) -> None:
        """Begin anew: what ran before were no steps."""
        self._setup = {}

    def figures(self) -> Measured:
        """Return the peaks.

        Raises:
            TensorlensError: the device was not used.
        """
        peaks = {name: peak for name, peak in self._device_peaks().items() if peak}
        device = self._device or max(peaks, key=peaks.__getitem__, default="cpu")
        setup = self._setup.get(device, 0)
        if device != "cpu":
            return self._device_figures(device, setup)
        missing = dict(self._counter.missing)
        resident = peak_resident()
        if resident is None:
            missing["peak_reserved"] = "this system does not tell the peak of the resident set"
        peak = max(self._peaks, default=0)
        return Measured(device, peak, resident, setup, (), None, missing=missing)

    def _device_bytes(self) -> dict[str, int]:
        """Return the bytes handed out on each accelerator now."""
        raise NotImplementedError

    def _device_peaks(self) -> dict[str, int]:
        """Return the highest of them until the last mark."""
        raise NotImplementedError

    def _device_figures(self, device: str, setup: int) -> Measured:
        raise NotImplementedError
