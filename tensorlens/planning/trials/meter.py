"""Measures the peaks of a job's steps, and names the largest parts of the peak."""

from __future__ import annotations

from collections.abc import Mapping

from tensorlens.frameworks.base import Counter
from tensorlens.frameworks.host.process_memory import status_sizes
from tensorlens.planning.trials.jobs import Measurement
from tensorlens.planning.trials.step_runner import END
from tensorlens.recording.present.moment_layout import moment_layouts, request_text
from tensorlens.recording.present.remarks import culprits
from tensorlens.recording.record import LiveRecording, record
from tensorlens.render.figures import size
from tensorlens.render.shown import View


class Meter:
    """Reads peaks at the marks of steps.

    Args:
        counter: counter of the CPU.
        device: device of the figures; None: the accelerator with the highest peak, or the CPU if
            none is used.
    """

    def __init__(self, counter: Counter, device: str | None) -> None:
        self._device = "cuda:0" if device == "cuda" else device
        self._counter = counter
        self._read = counter.reader()
        self._before = self._read()[0]
        self._setup: dict[str, int] = {}
        self._first_step = 0
        self._peaks: list[int] = []
        """Peaks of the CPU between marks; those from ``_first_step`` on are of steps."""

    def wait(self) -> None:
        """Wait until the devices are idle."""
        raise NotImplementedError

    def mark(self, name: str, row: int | None = None) -> None:
        """Note the peak so far, and the bytes at the begin of the first step."""
        self.wait()
        allocated, peak, _ = self._read()
        self._peaks.append(peak - self._before)
        of_devices = self._device_bytes()
        if name == "step 1":
            of_cpu = {"cpu": allocated - self._before}
            # the first step of a whole program includes its begin
            self._setup = {} if row == 0 else of_cpu | of_devices
            self._first_step = len(self._peaks)

    def forget_marks(self) -> None:
        """Forget the marks so far: they were no steps."""
        self._setup = {}

    def figures(self) -> Measurement:
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
        resident = status_sizes().get("VmHWM")
        if resident is None:
            missing["peak_reserved"] = "this system does not tell the peak of the resident set"
        peak = max(self._peaks, default=0)
        return Measurement(device, peak, resident, setup, (), None, missing=missing)

    def _device_bytes(self) -> dict[str, int]:
        """Return the bytes allocated on each accelerator now."""
        raise NotImplementedError

    def _device_peaks(self) -> dict[str, int]:
        """Return the peak of each accelerator until the last mark."""
        raise NotImplementedError

    def _device_figures(self, device: str, setup: int) -> Measurement:
        raise NotImplementedError


class ExtraStepRecorder:
    """Records one further step to name the largest parts of the peak.

    It passes the marks before that step on to a meter.
    """

    def __init__(self, meter: Meter, steps: int) -> None:
        self._meter = meter
        self._steps = steps
        self._recording: LiveRecording | None = None
        self._is_done = False
        self.figures: Measurement | None = None
        """Figures of the steps before it; None if the program ended earlier."""

    def mark(self, name: str, row: int | None = None) -> None:
        """Pass a mark on, or begin to record."""
        if name == f"step {self._steps + 1}":
            self._meter.mark(END)
            self.figures = self._meter.figures()
            self._recording = record().start()
        elif self._recording is None:
            self._meter.mark(name, row)

    def forget_marks(self) -> None:
        """Forget the marks so far: they were no steps."""
        self.done(self._steps + 1)
        self._recording, self._is_done, self.figures = None, False, None
        self._meter.forget_marks()

    def done(self, count: int) -> None:
        """Stop recording after the last step."""
        if self._recording is not None and count > self._steps:
            self._recording.stop()
            self._is_done = True

    def at_peak(self) -> Mapping[str, str]:
        """Return the peak of the step, its moment, and its largest line and tensors.

        It is empty if the program ended earlier.
        """
        if self.figures is None or self._recording is None or not self._is_done:
            return {}
        recording, device = self._recording.stop().without_source(), self.figures.device
        if device not in recording.devices or not recording.peak(device).bytes:
            return {}
        (shown,) = moment_layouts(recording, View(devices=(device,)))
        where = request_text(recording, shown.moment)
        parts = (size(shown.moment.bytes), where, "(one more step, recorded by itself)")
        return {"peak": " ".join(filter(None, parts)), **dict(culprits(shown))}
