"""One counter for the memory of a device that several frameworks hand out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorlens.frameworks.base import UNKNOWN, Counter, Reader
from tensorlens.frameworks.process import HeapCounter, ResidentCounter

_UPPER_BOUND = "a peak is the sum of theirs: an upper bound where both moved during one line"


class JoinedCounter:
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


def counts_the_process(counter: Counter) -> bool:
    """Tell whether a counter is one of the whole process, whoever hands the memory out."""
    return isinstance(counter, (HeapCounter, ResidentCounter))


def goes_on_from(counter: Counter, earlier: Counter) -> bool:
    """Tell whether a counter counts all that an earlier one did, in the same way.

    Its figures and those of before then go together: what it counts besides is of a framework
    that came later, and had handed out nothing.
    """
    if counter is earlier:
        return True
    parts = counter.parts if isinstance(counter, JoinedCounter) else (counter,)
    before = earlier.parts if isinstance(earlier, JoinedCounter) else (earlier,)
    return all(any(part is each for part in parts) for each in before)
