"""The counters of this process, one slot each, and how a thread reads them all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorlens.frameworks.base import Adapter, Counter, Reader
from tensorlens.frameworks.process import process_counter
from tensorlens.frameworks.registry import adapters
from tensorlens.lines.counters import Counters, goes_on_from

Read = Callable[[], Sequence[int]]
"""Gives ``[allocated, peak, reserved]`` of slot 0, then of slot 1, and so on."""


class Meters:
    """Finds the counters; slot 0 is host memory, accelerators follow as they come into use.

    A slot never moves. Counters are exchanged for better ones when a framework is imported later,
    through :meth:`refresh`, which the caller runs only while no line is open.
    """

    def __init__(
        self,
        find: Callable[[], Sequence[Adapter]] = adapters,
        host: Callable[[], Counter] = process_counter,
    ) -> None:
        self._find = find
        self._host = host
        self.counters: list[Counter] = []
        self.generation = 0
        """Grows when counters or the frameworks change: readers made before are stale."""
        self._sources = Counters()
        self._slot_of: dict[str, int] = {}

    def refresh(self) -> bool:
        """Take up frameworks imported since; return True if figures of before do not fit in.

        That is so where another counter of host memory took the place of the one in slot 0, and
        not where the new one only counts another framework's besides.
        """
        found = tuple(self._find())
        if self.counters and found == self._sources.adapters:
            return False
        self._sources = sources = Counters(found)
        self.generation += 1
        for device, slot in self._slot_of.items():
            self.counters[slot] = sources.device(device)
        host = sources.host()
        if self.counters and (host is None or host is self.counters[0]):
            return False
        before = self.counters[:1]
        self.counters[:1] = [host or self._host()]
        return any(not goes_on_from(self.counters[0], each) for each in before)

    @property
    def adapters(self) -> Sequence[Adapter]:
        """Those found last; none before a framework was imported."""
        return self._sources.adapters

    def notes(self) -> list[str]:
        """Return what the frameworks have to say about their figures, a line each."""
        late = [
            f"{each.name} was imported after the last profiled call began: what it allocated is "
            "not in these figures"
            for each in self._find()
            if each not in self.adapters
        ]
        return [*self._sources.notes(), *late] if self.adapters else []

    def reader(self) -> Read:
        """Return a function for the calling thread that reads every slot."""
        if not self.counters:
            self.refresh()
        host = self.counters[0].reader()
        used = [each.used_devices for each in self.adapters if each.has_accelerators()]
        return self._reader_of_all(host, used) if used else host

    def _reader_of_all(self, host: Reader, used: Sequence[Callable[[], Sequence[str]]]) -> Read:
        readers: list[Reader] = []
        sources = self._sources

        def read() -> Sequence[int]:
            for used_devices in used:
                for device in used_devices():
                    if device not in self._slot_of:
                        self._slot_of[device] = len(self.counters)
                        self.counters.append(sources.device(device))
            while len(readers) + 1 < len(self.counters):
                readers.append(self.counters[len(readers) + 1].reader())
            figures = list(host())
            for reader in readers:
                figures += reader()
            return figures

        return read
