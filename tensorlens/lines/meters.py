"""The counters of this process, one slot each, and how a thread reads them all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorlens.frameworks import base
from tensorlens.frameworks.base import Counter, Framework, Reader
from tensorlens.frameworks.process import process_counter

Read = Callable[[], Sequence[int]]
"""Gives ``[allocated, peak, reserved]`` of slot 0, then of slot 1, and so on."""


class Meters:
    """Finds the counters; slot 0 is host memory, accelerators follow as they come into use.

    A slot never moves. The counter in slot 0 is exchanged for a better one when a framework is
    imported later, through :meth:`refresh`, which the caller runs only while no line is open.
    """

    def __init__(
        self,
        find: Callable[[], list[Framework]] = base.frameworks,
        host: Callable[[], Counter] = process_counter,
    ) -> None:
        self._find = find
        self._host = host
        self.counters: list[Counter] = []
        self.generation = 0
        """Grows when slot 0 or the frameworks change: readers made before are stale."""
        self._frameworks: list[Framework] = []
        self._slot_of: dict[str, int] = {}

    def refresh(self) -> bool:
        """Take up frameworks imported since; return True if slot 0 was exchanged."""
        found = self._find()
        if self.counters and len(found) == len(self._frameworks):
            return False
        self._frameworks = list(found)
        self.generation += 1
        host = next((c for f in found if (c := f.cpu_counter()) is not None), None)
        if self.counters and (host is None or host is self.counters[0]):
            return False
        exchanged = bool(self.counters)
        self.counters[:1] = [host or self._host()]
        return exchanged

    def notes(self) -> list[str]:
        """Return what the frameworks have to say about their figures, a line each."""
        return [note for framework in self._frameworks for note in framework.notes()]

    def reader(self) -> Read:
        """Return a function for the calling thread that reads every slot."""
        if not self.counters:
            self.refresh()
        host = self.counters[0].reader()
        watched = [f for f in self._frameworks if f.has_accelerators()]
        if not watched:
            return host
        return self._reader_of_all(host, watched)

    def _reader_of_all(self, host: Reader, watched: list[Framework]) -> Read:
        readers: list[Reader] = []
        used = [framework.used_devices for framework in watched]

        def read() -> Sequence[int]:
            for devices in used:
                for device in devices():
                    if device not in self._slot_of:
                        self._add(device, watched)
            while len(readers) + 1 < len(self.counters):
                readers.append(self.counters[len(readers) + 1].reader())
            figures = list(host())
            for reader in readers:
                figures += reader()
            return figures

        return read

    def _add(self, device: str, watched: list[Framework]) -> None:
        for framework in watched:
            if device in framework.used_devices():
                self._slot_of[device] = len(self.counters)
                self.counters.append(framework.device_counter(device))
                return
