"""One step more of a measured run, recorded: what has most of its peak."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tensorlens.planning.trials.jobs import Measured
from tensorlens.recording.present.instants import instants, request_text
from tensorlens.recording.present.remarks import culprits
from tensorlens.recording.record import LiveRecording, record
from tensorlens.render.figures import size
from tensorlens.render.view import View

_WHICH = "(one more step, recorded by itself)"


class RecordedStep:
    """Begins when it is called, after the steps that are measured; no figure is of it.

    Args:
        measured: gives the figures of those, which are read before it begins.
    """

    def __init__(self, measured: Callable[[], Measured]) -> None:
        self._measured = measured
        self._recording: LiveRecording | None = None
        self.figures: Measured | None = None
        """None where the program ended before."""

    def __call__(self) -> Callable[[], object]:
        """Begin to record; return what ends that."""
        self.figures = self._measured()
        self._recording = record().start()
        return self._recording.stop

    def at_peak(self) -> Mapping[str, str]:
        """Return the step's peak and its moment, and the line and tensors that have most of it.

        It is empty where nothing was recorded.
        """
        if self.figures is None or self._recording is None:
            return {}
        recording, device = self._recording.stop().without_source(), self.figures.device
        if device not in recording.devices or not recording.peak(device).bytes:
            return {}
        (shown,) = instants(recording, View(devices=(device,)))
        parts = (size(shown.moment.bytes), request_text(recording, shown.moment), _WHICH)
        return {"peak": " ".join(filter(None, parts)), **dict(culprits(shown))}
