"""The counters of this process, one slot each, and how a thread reads them all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorlens.frameworks import base
from tensorlens.frameworks.base import Counter, Framework, Reader
from tensorlens.frameworks.process import process_counter
from tensorlens.frameworks.together import arrived
from tensorlens.frameworks.together.counters import goes_on_from

Read = Callable[[], Sequence[int]]
"""Gives ``[allocated, peak, reserved]`` of slot 0, then of slot 1, and so on."""


class Meters:
    """Finds the counters; slot 0 is host memory, accelerators follow as they come into use.

    A slot never moves. Counters are exchanged for better ones when a framework is imported later,
    through :meth:`refresh`, which the caller runs only while no line is open.
    """

    def __init__(
        self,
        find: Callable[[], Framework | None] = base.whole,
        host: Callable[[], Counter] = process_counter,
    ) -> None:
        self._find = find
        self._host = host
        self.counters: list[Counter] = []
        self.generation = 0
        """Grows when counters or the frameworks change: readers made before are stale."""
        self._framework: Framework | None = None
        self._slot_of: dict[str, int] = {}

    def refresh(self) -> bool:
        """Take up frameworks imported since; return True if figures of before do not fit in.

        That is so where another counter of host memory took the place of the one in slot 0, and
        not where the new one only counts another framework's besides.
        """
        found = self._find()
        if self.counters and found is self._framework:
            return False
        self._framework = found
        self.generation += 1
        if found is not None:
            for device, slot in self._slot_of.items():
                self.counters[slot] = found.device_counter(device)
        host = None if found is None else found.cpu_counter()
        if self.counters and (host is None or host is self.counters[0]):
            return False
        before = self.counters[:1]
        self.counters[:1] = [host or self._host()]
        return any(not goes_on_from(self.counters[0], each) for each in before)

    @property
    def framework(self) -> Framework | None:
        """What was found last; None before a framework was imported."""
        return self._framework

    def notes(self) -> list[str]:
        """Return what the frameworks have to say about their figures, a line each."""
        if self._framework is None:
            return []
        late = (
            f"{name} was imported after the last profiled call began: what it allocated is not "
            "in these figures"
            for name in arrived(self._framework, self._find())
        )
        return [*self._framework.notes(), *late]

    def reader(self) -> Read:
        """Return a function for the calling thread that reads every slot."""
        if not self.counters:
            self.refresh()
        host = self.counters[0].reader()
        if self._framework is None or not self._framework.has_accelerators():
            return host
        return self._reader_of_all(host, self._framework)

    def _reader_of_all(self, host: Reader, framework: Framework) -> Read:
        readers: list[Reader] = []
        used_devices = framework.used_devices

        def read() -> Sequence[int]:
            for device in used_devices():
                if device not in self._slot_of:
                    self._slot_of[device] = len(self.counters)
                    self.counters.append(framework.device_counter(device))
            while len(readers) + 1 < len(self.counters):
                readers.append(self.counters[len(readers) + 1].reader())
            figures = list(host())
            for reader in readers:
                figures += reader()
            return figures

        return read
