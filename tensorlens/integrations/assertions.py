"""Measures a test's memory, and writes what it took and left behind in words."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.frameworks.base import Counter, Reader
from tensorlens.frameworks.registry import adapters, device_name
from tensorlens.leaks.residue import Remains
from tensorlens.lines.counters import Counters
from tensorlens.recording.moments import Resident
from tensorlens.recording.record import LiveRecording, record
from tensorlens.render.source import place, printable
from tensorlens.units import format_bytes

_MOST_TENSORS = 3
_ALLOCATED, _PEAK = 0, 1


class Peaks:
    """The highest instant of each device since it was made.

    Args:
        device: of which one; None is of all that are in use.

    Raises:
        UsageError: there is nothing to count with.
        DeviceError: there is no such device here.
    """

    def __init__(self, device: str | None) -> None:
        self._counters = Counters(adapters())
        if not self._counters.adapters:
            raise UsageError("no framework was imported")
        self._device = None if device is None else device_name(device)
        self.unknown = self._why_no_peak("cpu") if self._device in (None, "cpu") else ""
        """Why a device is left out, the host's memory first; empty where none is."""
        self._recording: LiveRecording | None = record()
        try:
            self._recording.start()
        except TensorlensError:
            # without it the tensors have no names
            self._recording = None
        self._readers = {name: self._reader(name) for name in self._devices()}
        self._before = {name: read()[_ALLOCATED] for name, read in self._readers.items()}
        self._found: dict[str, int] = {}

    def end(self) -> None:
        """Stop counting."""
        for name in self._devices():
            # of a device that was not in use before, all is new
            figures = (self._readers.get(name) or self._reader(name))()
            before = self._before.get(name, 0)
            if figures[_PEAK] < 0:
                self.unknown = (
                    self.unknown or self._why_no_peak(name) or f"no peak of {name} is known"
                )
            elif before >= 0:
                self._found[name] = max(figures[_ALLOCATED], figures[_PEAK]) - before
        if self._recording is not None:
            self._recording.stop()

    def over(self, limit: int) -> str:
        """Return what took more than ``limit`` bytes, in words; nothing where nothing did."""
        lines = []
        for name, nbytes in self._found.items():
            if nbytes > limit:
                text = f"{name}: {format_bytes(nbytes)} at the highest instant of the test"
                lines.append(f"{text}, its limit is {format_bytes(limit)}")
                lines += self._largest(name)
        return "\n".join(lines)

    def _devices(self) -> list[str]:
        if self._device is not None:
            return [] if self.unknown else [self._device]
        return [*([] if self.unknown else ["cpu"]), *self._counters.used_devices()]

    def _why_no_peak(self, name: str) -> str:
        counter = self._counter(name)
        reason = "" if counter is None else counter.missing.get("peak", "")
        return f"no peak of {name} is known: {reason}" if reason else ""

    def _reader(self, name: str) -> Reader:
        counter = self._counter(name)
        if counter is None:
            raise TensorlensError("host memory cannot be counted here")
        return counter.reader()

    def _counter(self, name: str) -> Counter | None:
        if name == "cpu":
            return self._counters.host()
        return self._counters.device(name)

    def _largest(self, device: str) -> list[str]:
        if self._recording is None:
            return []
        with suppress(Exception):
            resident = self._recording.peak(device).tensors
            # what has no age was there before the test
            new = [each for each in resident if each.age_ns is not None]
            return [*map(_resident_text, new[:_MOST_TENSORS])]
        return []


def _resident_text(tensor: Resident) -> str:
    kind = "" if tensor.dtype is None else f": {tensor.dtype} {tensor.shape}"
    born = f", made at {place(tensor.born, function=True)}" if tensor.born else ""
    return f"  {format_bytes(tensor.nbytes)}  {printable(tensor.name)}{printable(kind)}{born}"


def remains_text(remains: Remains) -> list[str]:
    """Return lines on what is left of one line of a test."""
    size = format_bytes(remains.nbytes)
    if remains.tensors is None:
        return [f"  {size} on {remains.device}, where single tensors are not known"]
    count = "1 tensor" if remains.tensors == 1 else f"{remains.tensors} tensors"
    where = place(remains.born, function=True) if remains.born else "a line that is not known"
    lines = [f"  {size} in {count}, made at {where}"]
    if remains.source:
        lines.append(f"      {printable(remains.source)}")
    facts: Mapping[str, str] = {
        "tensor": _described(remains),
        "held by": printable(remains.path) or "nothing that can be seen from Python",
    }
    return [*lines, *(f"    {label:<9}{text}" for label, text in facts.items() if text)]


def _described(remains: Remains) -> str:
    if not remains.name:
        return ""
    return printable(f"{remains.name}: {remains.dtype} {remains.shape}")
