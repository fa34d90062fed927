"""The counters of the frameworks in use: one per device, whichever frameworks use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tensorlens.frameworks.base import UNKNOWN, Adapter, Counter, Reader
from tensorlens.frameworks.host.counters import HeapCounter, ResidentCounter, process_counter
from tensorlens.frameworks.registry import adapters, ask, ask_owners, unusable_notes

_UPPER_BOUND = "a peak is the sum of theirs: an upper bound if more than one moved during one line"


class SummedCounter:
    """The sum of several counters of one device that count different blocks.

    Allocated bytes are exact. Peaks need not fall on the same instant, so that their sum is an
    upper bound; it is exact if only one counter moved since the previous read. A figure that one
    of them cannot give is unknown.

    Args:
        parts: the counters.
        is_host: reserved is the resident set of the process in each, and is counted once.
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
        """Figure to the reason why it is unknown now; a read that fails may add one."""
        reasons_by_figure: dict[str, str] = {}
        for figure in ("allocated", "peak", "reserved"):
            lacking = [part for part in self.parts if figure in part.missing]
            is_shared = figure == "reserved" and self._is_host
            if len(lacking) == len(self.parts) if is_shared else lacking:
                reasons = (f"{part.source}: {part.missing[figure]}" for part in lacking)
                reasons_by_figure[figure] = "; ".join(dict.fromkeys(reasons))
        return reasons_by_figure

    def reader(self) -> Reader:
        """Return a function that reads ``(allocated, peak, reserved)`` in bytes."""
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
    """Return whether a counter counts all that an earlier one did, in the same way.

    Their figures then go together: the frameworks that it adds were imported later, and had
    allocated nothing.
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
"""Returns ``[allocated, peak, reserved]`` of slot 0, then of slot 1, and so on."""


class CounterSlots:
    """The counters by slot: 0 is host memory, accelerators follow as they come into use.

    A slot never moves. After a framework was imported, :meth:`refresh` exchanges the counters; it
    must be called while no line runs.
    """

    def __init__(
        self,
        find: Callable[[], Sequence[Adapter]] = adapters,
        host: Callable[[], Counter] = process_counter,
    ) -> None:
        self._find = find
        self._host = host
        self.adapters: tuple[Adapter, ...] = ()
        """The adapters at the last refresh; empty before a framework is imported."""
        self.counters: list[Counter] = []
        self.generation = 0
        """Increases when counters or frameworks change: earlier readers are stale then."""
        self._uncounted: list[str] = []
        """Names of adapters whose host memory is not counted while another's is."""
        self._slot_of: dict[str, int] = {}

    def refresh(self) -> bool:
        """Add frameworks imported since; return True if earlier figures cannot be continued.

        They cannot if host memory is counted in another way now; they can if the new counter only
        adds that of another framework.
        """
        found = tuple(self._find())
        if self.counters and found == self.adapters:
            return False
        self.adapters = found
        self.generation += 1
        for device, slot in self._slot_of.items():
            self.counters[slot] = self.device(device)
        host = self.host()
        if self.counters and (host is None or host is self.counters[0]):
            return False
        before = self.counters[:1]
        self.counters[:1] = [host or self._host()]
        return any(not continues(self.counters[0], each) for each in before)

    def host(self) -> Counter | None:
        """Return the sum of the exact host counters, or else a fallback.

        Raises:
            UsageError: ``TENSORLENS_COUNTER`` names one that no framework can provide.
        """
        answers, failed = ask(self.adapters, lambda each: each.cpu_counter())
        counters = [counter for _, counter in answers if counter is not None]
        exact = [
            counter
            for counter in counters
            if not _counts_the_process(counter) and "allocated" not in counter.missing
        ]
        self._uncounted = []
        if not exact:
            # a counter of the process covers all frameworks
            return next(filter(_counts_the_process, counters), counters[0] if counters else None)
        self._uncounted = [each.name for each, counter in answers if counter not in exact]
        self._uncounted += failed
        return _summed(exact, is_host=True)

    def device(self, name: str) -> Counter:
        """Return the counter of an accelerator, summed over the frameworks that use it.

        Raises:
            DeviceError: none of them has such a device.
        """
        counters = ask_owners(self.adapters, lambda each: each.device_counter(name))
        return _summed(counters, is_host=False)

    def notes(self) -> list[str]:
        """Return the notes on the figures, one line each."""
        if not self.adapters:
            return []
        counted = (each for each in self.adapters if each.name not in self._uncounted)
        notes = [note for each in counted for note in each.notes()]
        notes += [
            f"{name}: what it has on the CPU is not in these figures (see tensorlens doctor)"
            for name in self._uncounted
        ]
        notes += unusable_notes()
        notes += [
            f"{each.name} was imported after the last profiled call began: what it allocated is "
            "not in these figures"
            for each in self._find()
            if each not in self.adapters
        ]
        return [*dict.fromkeys(notes)]

    def reader(self) -> Read:
        """Return a function for the calling thread that reads every slot."""
        if not self.counters:
            self.refresh()
        host = self.counters[0].reader()
        used = [each.used_devices for each in self.adapters if each.has_accelerators()]
        return self._reader_of_all(host, used) if used else host

    def _reader_of_all(self, host: Reader, used: Sequence[Callable[[], Sequence[str]]]) -> Read:
        readers: list[Reader] = []

        def read() -> Sequence[int]:
            for used_devices in used:
                for device in used_devices():
                    if device not in self._slot_of:
                        self._slot_of[device] = len(self.counters)
                        self.counters.append(self.device(device))
            while len(readers) + 1 < len(self.counters):
                readers.append(self.counters[len(readers) + 1].reader())
            figures = list(host())
            for reader in readers:
                figures += reader()
            return figures

        return read
