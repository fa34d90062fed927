"""Frameworks that are not there: their memory is what the test says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorlens.errors import DeviceError
from tensorlens.frameworks import (
    Adapter,
    Findings,
    LeftBlock,
    Retained,
    StepFigures,
    Survivor,
    registry,
)
from tensorlens.records import EventLog, Origin, SourceLine, TensorTable
from tensorlens.roles import ROLES


class FakeCounter:
    """Gives the figures that the test puts into ``figures``."""

    def __init__(self, source: str, *figures: int, device: str = "cpu") -> None:
        self.device = device
        self.source = source
        self.precision = "exact bytes"
        self.missing: dict[str, str] = {}
        self.figures = figures

    def reader(self) -> Callable[[], Sequence[int]]:
        return lambda: self.figures


class FakeRecorder:
    """Gives a log that the test made."""

    def __init__(self, log: EventLog, origin: Origin) -> None:
        self.log = log
        self.origin = origin
        self.ended = 0

    def read(self, end: bool) -> tuple[EventLog, Origin]:
        self.ended += end
        return self.log, self.origin


class FakeHoldings:
    """Knows some blocks by address, and what hangs below their tensors in bytes."""

    def __init__(self, survivors: list[Survivor], below: Mapping[int, int]) -> None:
        self.survivors = survivors
        self._below = below

    def below(self, roots: Sequence[Any], group: Sequence[Any] = ()) -> Retained:
        nbytes = sum(self._below[id(root)] for root in roots)
        return Retained(nbytes, len(roots), (), nodes=3 * len(roots))


class FakeSteps:
    """Follows nothing: the figures are the test's."""

    def __init__(self, figures: StepFigures, blocks: Sequence[tuple[int, int, int, int]]) -> None:
        self._figures = figures
        self._blocks = blocks
        self.known: dict[int, Survivor] = {}
        self.below: dict[int, int] = {}
        self.begun = self.closed = self.merged = 0
        self.left_is_known = True

    def begin(self) -> None:
        self.begun += 1

    def merge(self) -> None:
        self.merged += 1

    def figures(self) -> StepFigures:
        return self._figures

    def left(self) -> list[LeftBlock] | None:
        if not self.left_is_known:
            return None
        rows = self._blocks
        return [LeftBlock(at, size, birth, step, size) for at, size, birth, step in rows]

    def line(self, birth: int) -> SourceLine | None:
        return None if birth < 0 else SourceLine("train.py", birth, type(self).__name__)

    def device(self, birth: int) -> str:
        return "cuda:0" if birth >= 1 << 24 or birth < -1 else "cpu"

    def notes(self) -> list[str]:
        return ["followed"]

    def holdings(self, addresses: Sequence[int]) -> FakeHoldings:
        survivors = [self.known.get(address, Survivor(address, 0)) for address in addresses]
        return FakeHoldings(survivors, self.below)

    def growing_graph(self, made: int) -> None:
        return None

    def close(self) -> None:
        self.closed += 1


class FakeFramework(Adapter):
    """Does what the test gave it, and raises ``trouble`` instead while there is any."""

    def __init__(self, name: str, cpu: Any = None, **devices: FakeCounter) -> None:
        self.name = name
        self.cpu = cpu
        self.devices = {each.device: each for each in devices.values()}
        self.used: list[str] = []
        self.findings = Findings(TensorTable(), {}, ())
        self.recorder: Any = None
        self.steps: Any = None
        self.trouble: Exception | None = None
        self.watching = 0
        self.acts: list[Callable[[], None]] = []
        self.kept_out: list[Any] = []
        self.forward: dict[str, str] = {}
        self.lines: list[str] = []
        self.locked = -1
        self.graphs: list[Any] = []
        self.request: Any = None

    def _well(self) -> None:
        if self.trouble is not None:
            raise self.trouble

    def cpu_counter(self) -> Any:
        self._well()
        return self.cpu

    def has_accelerators(self) -> bool:
        return bool(self.devices)

    def used_devices(self) -> list[str]:
        return self.used

    def device_counter(self, device: str) -> FakeCounter:
        return self.devices[self.device_name(device)]

    def device_name(self, device: Any) -> str:
        if device not in ("cpu", *self.devices):
            raise DeviceError(f"{device}: {self.name} has none")
        return str(device)

    def compiled_by(self, function: Any) -> str | None:
        return f"{self.name}.compile" if function == self.name else None

    def forward_of(self, item: Any) -> str | None:
        return self.forward.get(item)

    def keep_compilers_out(self, functions: Sequence[Any]) -> None:
        self._well()
        self.kept_out += functions

    def watch(self) -> Callable[[], None]:
        self._well()
        self.watching += 1
        return self._watch_no_longer

    def _watch_no_longer(self) -> None:
        self.watching -= 1

    def census(self, roots: Sequence[Any]) -> Findings:
        self._well()
        return self.findings

    def record(self, options: Any) -> Any:
        self._well()
        return {self.name: self.recorder}

    def follow(self) -> Any:
        self._well()
        return self.steps

    def when_stepped(self, act: Callable[[], None]) -> Callable[[], None]:
        self.acts.append(act)
        return self.acts.clear

    def pinned(self) -> int:
        return self.locked

    def failed_request(self, error: BaseException) -> Any:
        return self.request

    def graphs_kept(self) -> list[Any]:
        return self.graphs

    def notes(self) -> list[str]:
        return self.lines


def table(*rows: tuple[str, int, int], device: str = "cpu", note: str | None = None) -> TensorTable:
    """Return a table of ``(name, address, bytes)``; the second at an address is an alias."""
    made = TensorTable()
    made.devices, made.dtypes, made.shapes = [device], ["float32"], [()]
    made.notes = [] if note is None else [note]
    owners: dict[int, int] = {}
    for row, (name, address, nbytes) in enumerate(rows):
        values = {
            **dict.fromkeys(("device", "dtype", "shape", "offset"), 0),
            **dict.fromkeys(("stride", "held_by", "born", "model_line", "module"), -1),
            "nbytes": nbytes,
            "storage": address,
            "storage_nbytes": nbytes,
            "role": ROLES.index("other"),
            "name": made.names.text(name),
            "alias": owners.get(address, -1),
            "note": -1 if note is None else 0,
        }
        owners.setdefault(address, row)
        for column, value in values.items():
            getattr(made, column).append(value)
    return made


def use(monkeypatch: Any, *frameworks: FakeFramework) -> None:
    """Let these be the frameworks of the process."""
    monkeypatch.setattr(registry, "_FRAMEWORKS", {each.name: "" for each in frameworks})
    monkeypatch.setattr(registry, "_loaded", {each.name: each for each in frameworks})
