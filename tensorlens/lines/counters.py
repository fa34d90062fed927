"""The counters of the frameworks in use: one for each device, whoever hands its memory out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tensorlens.frameworks.base import UNKNOWN, Adapter, Counter, Reader
from tensorlens.frameworks.host.counters import HeapCounter, ResidentCounter, process_counter
from tensorlens.frameworks.registry import adapters, ask, ask_owners, unusable_notes

_UPPER_BOUND = "a peak is the sum of theirs: an upper bound where both moved during one line"


class Counters:
    """The counters of some adapters, each device's as one."""

    def __init__(self, adapters: Sequence[Adapter] = ()) -> None:
        self.adapters = tuple(adapters)
        self._uncounted: list[str] = []
        """Names of those whose host memory is not counted, beside one whose is."""

    def host(self) -> Counter | None:
        """Return a counter of all host memory that can be counted exactly, or else a fallback.

        Raises:
            UsageError: ``TENSORLENS_COUNTER`` asks for one that cannot be had in any framework.
        """
        answers, failed = ask(self.adapters, lambda each: each.cpu_counter())
        found = [counter for _, counter in answers if counter is not None]
        exact = [
            counter
            for counter in found
            if not _counts_the_process(counter) and "allocated" not in counter.missing
        ]
        self._uncounted = []
        if not exact:
            # a counter of the process counts what all have
            return next(filter(_counts_the_process, found), found[0] if found else None)
        self._uncounted = [each.name for each, counter in answers if counter not in exact]
        self._uncounted += failed
        return _summed(exact, is_host=True)

    def device(self, name: str) -> Counter:
        """Return the counter of an accelerator, of what all frameworks have there.

        Raises:
            DeviceError: none of them has such a device.
        """
        found = ask_owners(self.adapters, lambda each: each.device_counter(name))
        return _summed(found, is_host=False)

    def notes(self) -> list[str]:
        """Return lines for the report, each once: the frameworks', and what is not counted."""
        counted = (each for each in self.adapters if each.name not in self._uncounted)
        notes = [note for each in counted for note in each.notes()]
        notes += [
            f"{name}: what it has on the CPU is not in these figures (see tensorlens doctor)"
            for name in self._uncounted
        ]
        return [*dict.fromkeys([*notes, *unusable_notes()])]


class SummedCounter:
    """Counts what several counters of one device count, none of which counts what another does.

    What is handed out is exactly the sum. The highest instants of several need not be the same
    one, so that the sum of peaks is an upper bound; it is exact where only one of them moved
    since the previous read. A figure that one of them cannot give is unknown.

    Args:
        parts: the counters.
        is_host: each gives the resident set of the process as reserved, which is counted once.
    """

    def __init__(self, parts: Sequence[Counter], *, is_host: bool) -> None:
        self.parts = tuple(parts)
        self.device = self.parts[0].device
        self.source = " and ".join(dict.fromkeys(part.source for part in self.parts))
        precisions = dict.fromkeys(part.precision for part in self.parts)
        bound = [] if any("peak" in part.missing for part in self.parts) else [_UPPER_BOUND]
        self.precision = "; ".join([*precisions, *bound])
        self._is_host = is_host

    @property
    def missing(self) -> Mapping[str, str]:
        """Figure to the reason it is unknown, as of now: some grow when a read fails."""
        found: dict[str, str] = {}
        for figure in ("allocated", "peak", "reserved"):
            lacking = [part for part in self.parts if figure in part.missing]
            several = figure == "reserved" and self._is_host
            if len(lacking) == len(self.parts) if several else lacking:
                reasons = (f"{part.source}: {part.missing[figure]}" for part in lacking)
                found[figure] = "; ".join(dict.fromkeys(reasons))
        return found

    def reader(self) -> Reader:
        """Return a function that gives ``(allocated, peak, reserved)`` in bytes."""
        first, *others = [part.reader() for part in self.parts]
        is_host = self._is_host

        def read() -> tuple[int, int, int]:
            allocated, peak, reserved = first()
            for read_other in others:
                more, high, held = read_other()
                allocated = allocated + more if allocated >= 0 <= more else UNKNOWN
                peak = peak + high if peak >= 0 <= high else UNKNOWN
                if not is_host:
                    reserved = reserved + held if reserved >= 0 <= held else UNKNOWN
                elif reserved < 0:
                    reserved = held
            return allocated, peak, reserved

        return read


def continues(counter: Counter, earlier: Counter) -> bool:
    """Tell whether a counter counts all that an earlier one did, in the same way.

    Its figures and those of before then go together: what it counts besides is of a framework
    that came later, and had handed out nothing.
    """
    parts = _parts(counter)
    return all(any(part is each for part in parts) for each in _parts(earlier))


def _parts(counter: Counter) -> Sequence[Counter]:
    return counter.parts if isinstance(counter, SummedCounter) else (counter,)


def _summed(counters: Sequence[Counter], *, is_host: bool) -> Counter:
    return counters[0] if len(counters) == 1 else SummedCounter(counters, is_host=is_host)


def _counts_the_process(counter: Counter) -> bool:
    return isinstance(counter, (HeapCounter, ResidentCounter))


Read = Callable[[], Sequence[int]]
"""Gives ``[allocated, peak, reserved]`` of slot 0, then of slot 1, and so on."""


class CounterSlots:
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
        return any(not continues(self.counters[0], each) for each in before)

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
