"""Measurement of a test's memory, and the text of its failures."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from tensorlens import config
from tensorlens.errors import TensorlensError, UsageError
from tensorlens.frameworks.registry import adapters, device_name
from tensorlens.leaks.report import place_of
from tensorlens.leaks.scope import LineResidue
from tensorlens.lines.region import MeasuredRegion
from tensorlens.recording.analysis import Resident
from tensorlens.recording.record import LiveRecording, record
from tensorlens.render.source import place, printable
from tensorlens.units import format_bytes

_MAX_TENSORS = 3


class Peaks:
    """The peak of each device since its creation, above the level at that time.

    Args:
        device: the device; None for all in use.
        names: record allocations too, to name them.
        region: reader of the counters, for tests.

    Raises:
        UsageError: no framework is imported.
        DeviceError: there is no such device here.
    """

    def __init__(
        self, device: str | None, *, names: bool = True, region: MeasuredRegion | None = None
    ) -> None:
        if not adapters():
            raise UsageError("no framework was imported")
        self._device = None if device is None else device_name(device)
        self.unknown: dict[str, str] = {}
        """Device without a known peak to the reason."""
        self.found: dict[str, int] = {}
        """Device to bytes, as of the last :meth:`read`."""
        self._recording: LiveRecording | None = record() if names else None
        try:
            if self._recording is not None:
                self._recording.start()
        except TensorlensError:
            # without it the tensors have no names
            self._recording = None
        self._region = MeasuredRegion() if region is None else region
        self._before = {each.device: each.allocated for each in self._region.begin()}

    def read(self) -> dict[str, int]:
        """Return the peak of each device so far, in bytes."""
        for level, counter in zip(self._region.read(), self._region.counters, strict=False):
            name = level.device
            if self._device not in (None, name):
                continue
            # on a device not used before all memory is new
            before = self._before.get(name, 0)
            if level.peak < 0:
                reason = counter.missing.get("peak", "")
                self.unknown[name] = f"no peak of {name} is known{reason and f': {reason}'}"
            elif before >= 0:
                self.found[name] = max(level.peak - before, self.found.get(name, 0))
        return self.found

    def restart(self) -> None:
        """Start again from the present level."""
        self._before = {each.device: each.allocated for each in self._region.read()}
        self.found = {}

    def end(self) -> None:
        """Stop counting."""
        try:
            self.read()
        finally:
            self._region.end()
            if self._recording is not None:
                self._recording.stop()

    def over(self, limit: int) -> str:
        """Return the message on peaks above ``limit`` bytes; "" if there are none."""
        lines = []
        for name, nbytes in self.found.items():
            if nbytes > limit:
                text = f"{name}: {format_bytes(nbytes)} at the highest instant of the test"
                lines.append(f"{text}, its limit is {format_bytes(limit)}")
                lines += self._largest(name)
        return "\n".join(lines)

    def _largest(self, device: str) -> list[str]:
        if self._recording is None:
            return []
        with suppress(Exception):
            resident = self._recording.peak(device).tensors
            # tensors without an age are from before the test
            new = [each for each in resident if each.age_ns is not None]
            return [*map(_resident_text, new[:_MAX_TENSORS])]
        return []


class TensorMemory:
    """Memory of a test above the level at its beginning or the last restart.

    It begins at once if a framework is imported, else at the first question.
    """

    def __init__(self) -> None:
        self._peaks: Peaks | None = None
        with suppress(UsageError):
            self._begin()

    def peak(self, device: str = "cpu") -> int:
        """Return the peak so far, in bytes.

        Raises:
            UsageError: no framework was imported, or no peak of the device is known.
            DeviceError: there is no such device here.
        """
        peaks = self._begin()
        name = device_name(device)
        found = peaks.read().get(name)
        if found is None:
            if name in peaks.unknown:
                raise UsageError(peaks.unknown[name])
            return 0
        return found

    def restart(self) -> None:
        """Begin anew: what is allocated now does not count."""
        self._begin().restart()

    def close(self) -> None:
        """Stop counting."""
        if self._peaks is not None:
            self._peaks.end()

    def _begin(self) -> Peaks:
        if self._peaks is None:
            self._peaks = Peaks(None, names=False)
        return self._peaks


def _resident_text(tensor: Resident) -> str:
    kind = "" if tensor.dtype is None else f": {tensor.dtype} {tensor.shape}"
    born = f", made at {place(tensor.born, function=True)}" if tensor.born else ""
    return f"  {format_bytes(tensor.nbytes)}  {printable(tensor.name)}{printable(kind)}{born}"


def remains_text(remains: LineResidue) -> list[str]:
    """Return lines on what is left of one line of a test."""
    size = format_bytes(remains.nbytes)
    if remains.tensors is None:
        return [f"  {size} on {remains.device}, where single tensors are not known"]
    count = "1 tensor" if remains.tensors == 1 else f"{remains.tensors} tensors"
    where = place_of(remains.born)
    lines = [f"  {size} in {count}, made at {where}"]
    if remains.source and config.current().source:
        lines.append(f"      {printable(remains.source)}")
    facts: Mapping[str, str] = {
        "tensor": _described(remains),
        "held by": printable(remains.path) or "nothing that can be seen from Python",
    }
    return [*lines, *(f"    {label:<9}{text}" for label, text in facts.items() if text)]


def _described(remains: LineResidue) -> str:
    if not remains.name:
        return ""
    return printable(f"{remains.name}: {remains.dtype} {remains.shape}")
