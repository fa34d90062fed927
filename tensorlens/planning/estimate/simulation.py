"""Replays the requests of a trace on simulated allocators."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tensorlens.planning.allocators.bfc import BFCAllocator
from tensorlens.planning.allocators.cuda import CachingAllocator
from tensorlens.planning.allocators.simulated import (
    Figures,
    Level,
    SimulatedAllocator,
    SimulatedOutOfMemory,
)
from tensorlens.planning.estimate.result import EstimatedStep
from tensorlens.planning.trace import Handover, Trace
from tensorlens.records.logs.events import ALLOC, FREE, Context, EventLog, Mark
from tensorlens.records.torch_files.sizes import Rules

_UNIT = 2 << 20
_RESOLUTION = 400
"""The least capacity is found to this fraction (1/n) of the reserved memory, in whole units."""

_FREE, _EMPTY = -1, -2
"""Stand in for the bytes of a request: free a block, or empty the cache."""

SizeOf = Callable[[int], int]
"""Returns the requested bytes of a row."""


class Simulation:
    """Replays a trace on one allocator for each device.

    ``rules`` are those of accelerators' allocators; host memory is counted as requested.
    """

    def __init__(self, trace: Trace, rules: Rules, size: SizeOf | None = None) -> None:
        self._trace = trace
        self._size = trace.log.size.__getitem__ if size is None else size
        self.log = log = trace.log.sibling()
        """Log with addresses and segments, its rows in the order of the trace."""
        log.sources = trace.log.sources
        self.rows: dict[int, int] = {}
        """Row of an allocation in the trace to its row in the log."""
        self.figures: dict[str, list[EstimatedStep]] = {}
        """Device to the figures of its steps, the setup first."""
        self._counters: dict[str, SimulatedAllocator | _HostCounter] = {}
        for name in trace.log.devices:
            log.devices.number(name)
            if name == "cpu":
                self._counters[name] = _HostCounter(log, name)
            elif trace.framework == "tensorflow":
                self._counters[name] = BFCAllocator(log=log, device=name)
            else:
                self._counters[name] = CachingAllocator(rules, log=log, device=name)
        self._addresses: dict[int, int] = {}
        """Address in the trace to the simulated address."""
        self._open: dict[int, int] = {}
        """Address in the trace to the row in the log, of blocks that are not freed."""

    def run(self) -> Simulation:
        """Replay all requests, and return itself with the results."""
        log = self._trace.log
        addresses = self._addresses
        actions = self._actions()
        for row in range(len(log.kind)):
            while actions and actions[0][0] <= row:
                actions.popleft()[1]()
            counter = self._counters[log.devices[log.device[row]]]
            number = log.context[row]
            context = None if number < 0 else log.contexts[number]
            if log.kind[row] == ALLOC:
                address = counter.malloc(self._size(row), stack=log.stack[row], context=context)
                addresses[log.address[row]] = address
                if address:
                    made = len(self.log.kind) - 1
                    self.rows[row] = self._open[log.address[row]] = made
                    self.log.label[made] = log.label[row]
            elif log.kind[row] == FREE:
                address = addresses.pop(log.address[row])
                counter.free(address, stack=log.stack[row], context=context)
        for _, act in actions:
            act()
        for counter in self._counters.values():
            counter.write_segments()
        return self

    def peaks(self, device: str) -> tuple[int, int]:
        """Return the allocated and the reserved peak over all steps, in bytes."""
        steps = self.figures.get(device, ())
        allocated = max((each.peak_allocated for each in steps), default=0)
        return allocated, max((each.peak_reserved for each in steps), default=0)

    def _actions(self) -> deque[tuple[int, Callable[[], None]]]:
        """Return rows and the actions due before them, in order."""
        found: list[tuple[int, int, Callable[[], None]]] = []
        ends = ["setup", *(mark.name for mark in self._trace.log.marks)]
        for name, mark in zip(ends, self._trace.log.marks, strict=False):
            found.append((mark.row, 1, partial(self._mark, name, mark.name)))
        for row, device in self._trace.emptied:
            found.append((row, 0, self._counters[device].empty_cache))
        found += [(each.row, 0, partial(self._hand_over, each)) for each in self._trace.handovers]
        return deque((row, act) for row, _, act in sorted(found, key=lambda each: each[:2]))

    def _mark(self, ended: str, begins: str) -> None:
        for device, counter in self._counters.items():
            figures = counter.figures
            self.figures.setdefault(device, []).append(
                EstimatedStep(
                    ended,
                    peak_allocated=figures.allocated.peak,
                    peak_reserved=figures.reserved.peak,
                    allocated=figures.allocated.current,
                    reserved=figures.reserved.current,
                )
            )
            counter.reset_peaks()
        self.log.marks.append(Mark(begins, len(self.log.kind), 0))

    def _hand_over(self, handover: Handover) -> None:
        """Change the label of a block without a request to its allocator."""
        log, before = self.log, self._open[handover.address]
        device = log.devices[log.device[before]]
        address, size = log.address[before], log.size[before]
        for kind in (FREE, ALLOC):
            log.append(kind, device, address, size, 0, handover.stack, handover.context)
        made = self._open[handover.address] = len(log.kind) - 1
        if before in log.held:
            log.held[made] = log.held[before]
        log.name(made, handover.label)


def block_changes(log: EventLog, device: str) -> Iterator[tuple[int, int, int]]:
    """Yield the allocations and frees of a device: row, row of the allocation, bytes held.

    The bytes of a free are negative.
    """
    number = log.devices.index(device) if device in log.devices else -1
    for row, (kind, on, pair) in enumerate(zip(log.kind, log.device, log.pair, strict=True)):
        if on == number and kind < FREE:
            yield row, row, log.held.get(row, log.size[row])
        elif on == number and kind == FREE and pair >= 0:
            yield row, pair, -log.held.get(pair, log.size[pair])


class _HostCounter:
    """Counts host memory as requested, without segments."""

    def __init__(self, log: EventLog, device: str) -> None:
        self._log = log
        self._device = device
        self._sizes: dict[int, int] = {}
        self._requests = self._now = self._peak = 0

    def malloc(self, nbytes: int, *, stack: int, context: Context | None) -> int:
        self._requests += 1
        address = self._requests << 12
        self._sizes[address] = nbytes
        self._now += nbytes
        self._peak = max(self._peak, self._now)
        self._log.append(ALLOC, self._device, address, nbytes, 0, stack, context)
        return address

    def free(self, address: int, *, stack: int, context: Context | None) -> None:
        nbytes = self._sizes.pop(address)
        self._now -= nbytes
        self._log.append(FREE, self._device, address, nbytes, 0, stack, context)

    @property
    def figures(self) -> Figures:
        level = Level(self._now, self._peak)
        return Figures(level, level, level)

    def reset_peaks(self) -> None:
        self._peak = self._now

    def empty_cache(self) -> None:
        pass

    write_segments = empty_cache


def least_capacity(
    trace: Trace, device: str, rules: Rules, reserved: int, size: SizeOf | None = None
) -> int:
    """Return the least capacity in which all requests of a device have room, by bisection.

    It lies between the requested peak, in torch the allocated one, and the peak reserved with
    unlimited memory.
    """
    requests = _requests(trace, device, trace.log.size.__getitem__ if size is None else size)
    grain = max(reserved // _RESOLUTION // _UNIT, 1) * _UNIT
    is_tensorflow = trace.framework == "tensorflow"

    def fits(grains: int | None) -> SimulatedAllocator | None:
        capacity = None if grains is None else grains * grain
        allocator: SimulatedAllocator = (
            BFCAllocator(capacity, collects=True)
            if is_tensorflow
            else CachingAllocator(rules, capacity=capacity)
        )
        try:
            _replay(requests, allocator)
        except SimulatedOutOfMemory:
            return None
        return allocator

    unlimited = fits(None)
    assert unlimited is not None
    figures = unlimited.figures
    if is_tensorflow:
        too_little = -(-figures.requested.peak // grain) - 1
        enough = too_little + 1
        while fits(enough) is None:
            too_little, enough = enough, max(2 * enough, 1)
    else:
        too_little = figures.allocated.peak // grain - 1
        enough = -(-figures.reserved.peak // grain)
    while enough - too_little > 1:
        middle = (too_little + enough) // 2
        if fits(middle) is None:
            too_little = middle
        else:
            enough = middle
    return min(enough * grain, reserved)


def _requests(trace: Trace, device: str, size: SizeOf) -> Sequence[tuple[int, int]]:
    """Return the requests of a device: bytes and address in the trace."""
    log = trace.log
    number = log.devices.index(device)
    emptied = [row for row, name in trace.emptied if name == device]
    found: list[tuple[int, int]] = []
    for row, (kind, on) in enumerate(zip(log.kind, log.device, strict=True)):
        while emptied and emptied[0] <= row:
            emptied.pop(0)
            found.append((_EMPTY, 0))
        if on == number and kind == ALLOC:
            found.append((size(row), log.address[row]))
        elif on == number and kind == FREE:
            found.append((_FREE, log.address[row]))
    return found


def _replay(requests: Sequence[tuple[int, int]], allocator: SimulatedAllocator) -> None:
    addresses: dict[int, int] = {}
    for nbytes, place in requests:
        if nbytes >= 0:
            addresses[place] = allocator.malloc(nbytes)
        elif nbytes == _FREE:
            allocator.free(addresses.pop(place))
        else:
            allocator.empty_cache()
