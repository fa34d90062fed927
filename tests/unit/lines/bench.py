"""A program's memory, scripted by the test, and what the line tracer says about it.

Works alike on every interpreter: ``way`` is how the functions come to be profiled, "decorated"
(on Python 3.11 by a twin) or "around" (``with LineProfiler(...)``, on Python 3.11 by other code in
the function itself).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorlens import LineProfiler
from tensorlens.frameworks import Adapter
from tensorlens.lines import CounterSlots, Engine, FunctionLines, Line, LineMemory

WAYS = ("decorated", "around")


class FakeMemory:
    """Implements ``base.Counter``; the test hands out and takes back the bytes."""

    source = "script"
    precision = "exact"
    missing: Mapping[str, str] = {}

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.allocated = 0
        self.peak = 0
        self.reserved = 0
        self.reads = 0
        self.failures: dict[int, BaseException] = {}
        """Number of the read, from 1, to what it raises."""

    def allocate(self, nbytes: int) -> None:
        self.allocated += nbytes
        self.peak = max(self.peak, self.allocated)
        self.reserved = max(self.reserved, self.allocated)

    def free(self, nbytes: int) -> None:
        self.allocated -= nbytes

    def spike(self, nbytes: int) -> None:
        self.allocate(nbytes)
        self.free(nbytes)

    def reader(self) -> Callable[[], Sequence[int]]:
        def read() -> Sequence[int]:
            self.reads += 1
            if self.reads in self.failures:
                raise self.failures[self.reads]
            figures = (self.allocated, self.peak, self.reserved)
            self.peak = self.allocated
            return figures

        return read


class FakeFramework(Adapter):
    """Implements what ``lines`` asks of a framework; accelerators come into use by name."""

    name = "fake"

    def __init__(self, *devices: FakeMemory, cpu: FakeMemory | None = None) -> None:
        self.devices = {memory.device: memory for memory in devices}
        self.cpu = cpu
        self.used: list[str] = []

    def cpu_counter(self) -> FakeMemory | None:
        return self.cpu

    def has_accelerators(self) -> bool:
        return bool(self.devices)

    def used_devices(self) -> Sequence[str]:
        return self.used

    def device_counter(self, device: str) -> FakeMemory:
        return self.devices[device]

    def device_name(self, device: Any) -> str:
        return str(device)


class Bench:
    """One engine over scripted memory, and one profiler."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.memory = FakeMemory()
        self.frameworks: list[Any] = []
        self.engine = Engine(CounterSlots(find=lambda: self.frameworks, host=lambda: self.memory))
        self.profiler = LineProfiler(engine=self.engine)
        self.others: list[LineProfiler] = []
        self.enabled = False

    def profile(self, function: Any) -> Any:
        """Decorate ``function``, or have it measured as it is."""
        if self.way == "decorated":
            return self.profiler(function)
        self.profiler.add_function(function)
        if not self.enabled:
            self.enabled = True
            self.profiler.enable_by_count()
        return function

    def another_profiler(self, *functions: Any) -> LineProfiler:
        profiler = LineProfiler(*functions, engine=self.engine)
        self.others.append(profiler)
        return profiler

    def close(self) -> None:
        if self.enabled:
            self.enabled = False
            self.profiler.disable_by_count()
        for profiler in (self.profiler, *self.others):
            profiler.close()

    def functions(self) -> list[FunctionLines]:
        return list(self.profiler.result().functions)

    def function(self, name: str) -> FunctionLines:
        (found,) = [function for function in self.functions() if function.name == name]
        return found

    def line(self, mark: str) -> Line:
        """Return the line that ends in the comment ``# mark``."""
        (found,) = [
            line
            for function in self.functions()
            for line in function.lines
            if line.source.endswith(f"# {mark}")
        ]
        return found

    def at(self, mark: str, device: str = "cpu") -> LineMemory:
        return self.line(mark).memory[device]

    def hits(self, *marks: str) -> list[int]:
        return [self.line(mark).hits for mark in marks]

    def nets(self, *marks: str) -> list[int | None]:
        """Return the net of each line, None for one that never ran."""
        memory = [self.line(mark).memory.get("cpu") for mark in marks]
        return [None if figures is None else figures.net for figures in memory]

    def peaks(self, *marks: str) -> list[int | None]:
        return [self.at(mark).peak for mark in marks]

    def raised(self) -> dict[str, str]:
        """Return the marks of the lines that an exception left, with its text."""
        return {
            line.source.partition("# ")[2]: line.raised
            for function in self.functions()
            for line in function.lines
            if line.raised is not None
        }

    def is_idle(self) -> bool:
        """Tell whether nothing is left over of the calls so far in this thread."""
        thread = self.engine.thread()
        suspended = getattr(self.engine.tracer, "_suspended", None)
        on = 1 if self.enabled else 0
        counts = (thread.depth, self.profiler._switch.count)
        return not (thread.stack or self.engine.busy or suspended) and counts == (on, on)
