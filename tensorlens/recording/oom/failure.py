"""Report on a failed allocation: the requesting line, resident memory, and remedies."""

from __future__ import annotations

import linecache
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tensorlens.frameworks.base import TORCH, AdviceWords, KeptGraph, Request
from tensorlens.recording.analysis.sites import Sites
from tensorlens.recording.record import running
from tensorlens.recording.recordings import Recording
from tensorlens.records.ledger import Ledger
from tensorlens.records.logs.events import OOM, EventLog
from tensorlens.records.logs.stacks import Frame
from tensorlens.records.names import INDEX, KEY
from tensorlens.render.shown import Shown
from tensorlens.roles import ROLES
from tensorlens.tensors.snapshot import Snapshot
from tensorlens.units import format_bytes
from tensorlens.user_code import is_foreign


@dataclass(frozen=True, slots=True)
class Remedy:
    """A way to free memory."""

    nbytes: int
    """Resident bytes that it concerns."""
    text: str
    """One line on what it is and what to do."""


@dataclass(frozen=True, slots=True)
class OutOfMemory(Shown):
    """Report on a failed allocation; prints itself as text."""

    PRESENTER: ClassVar[str] = "tensorlens.recording.oom.present"

    request: Request
    snapshot: Snapshot
    """Memory while the error was raised, or after it was handled."""
    remedies: tuple[Remedy, ...] = ()
    """Memory that could be freed."""
    remarks: tuple[str, ...] = ()
    """Further facts: limits of the process, cached memory and its pieces."""
    handled: bool = False
    """Whether the program handled the error, and may have freed memory since."""

    def without_source(self) -> OutOfMemory:
        """Return the report without the text of the requesting line."""
        if not self.request.source:
            return self
        return replace(self, request=replace(self.request, source=None))


_OURS = "<tensorlens"
"""Prefix of the names of code between a profiled function and its caller."""


def located(request: Request, error: BaseException, recording: Recording | None) -> Request:
    """Return the request with its origin, from ``recording``, a running one, or the traceback."""
    try:
        for each in (recording, *running()):
            found = None if each is None else _recorded(request, each.log)
            if found is not None:
                return _with_source(found)
    except MemoryError:
        # reading a log takes more memory than reading a traceback
        pass
    return _with_source(_traced(request, error))


def _recorded(request: Request, log: EventLog) -> Request | None:
    """Return the request with the origin of the log's last failed one, if that is the same."""
    row = next((row for row in range(len(log) - 1, -1, -1) if log.kind[row] == OOM), None)
    if row is None or request.device != log.devices[log.device[row]]:
        return None
    nbytes = log.size[row]
    if request.nbytes is None or (request.exact and request.nbytes != nbytes):
        return None
    site = Sites(log)[log.stack[row], log.context[row]]
    return replace(
        request,
        nbytes=nbytes,
        exact=True,
        line=site.charged,
        module=site.module,
        op=site.context.outer or site.context.op,
        phase=site.phase,
    )


def _traced(request: Request, error: BaseException) -> Request:
    log = EventLog()
    stack = log.stacks.add([*_frames(error)])
    site = Sites(log)[stack, -1]
    return replace(
        request,
        # the line that made a graph's node is not the one that runs the graph
        line=request.line or site.charged,
        phase=site.phase if site.phase != "other" else None,
    )


def _frames(error: BaseException) -> Iterator[Frame]:
    """Yield the frames of the traceback and its callers, innermost first."""
    walked = [*traceback.walk_tb(error.__traceback__)]
    callers = walked[0][0].f_back if walked else None
    # walk_stack(None) would walk our own stack
    outer = () if callers is None else traceback.walk_stack(callers)
    for frame, lineno in (*reversed(walked), *outer):
        code = frame.f_code
        user = not is_foreign(code.co_filename) and not code.co_filename.startswith(_OURS)
        yield Frame(code.co_filename, lineno or code.co_firstlineno, code.co_qualname, user)


def _with_source(request: Request) -> Request:
    if request.line is None:
        return request
    text = linecache.getline(request.line.filename, request.line.lineno).strip()
    return replace(request, source=text or None)


def address_limit() -> int | None:
    """Return the limit of the process's address space in bytes; None without a limit."""
    if sys.platform == "win32":
        return None
    import resource

    found = [
        soft
        for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)
        for soft in resource.getrlimit(kind)[:1]
        if soft != resource.RLIM_INFINITY and 0 < soft < 1 << 60
    ]
    return min(found, default=None)


_MIN_SHARE = 0.02
"""Least share of the allocated memory for a remedy."""
_MIN_TENSORS = 3
"""Least number of tensors in a list or dict for a remedy: a pair may be a batch."""
_STATE = "optimizer state: an optimizer with less of it, or state in lower precision"
_EXPANDABLE = "expandable_segments:True"
_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def remedies(
    request: Request,
    snapshot: Snapshot,
    graphs: Sequence[KeptGraph] = (),
    words: AdviceWords = TORCH,
) -> tuple[Remedy, ...]:
    """Return ways to free memory on the request's device.

    They are derived from resident tensors, each of which counts once; small ones are left out. The
    largest come first, and the optimizer's state last, as it is needed.

    Args:
        request: the failed request.
        snapshot: memory at that time.
        graphs: parts of autograd's graph, oldest first.
        words: terms of the framework.
    """
    device = request.device
    if device is None or device not in snapshot.ledger or _impossible(request, snapshot):
        return ()
    ledger = snapshot.ledger[device]
    resident = _Resident(snapshot, device)
    found = [
        *_graphs(resident, graphs),
        *_containers(resident),
        *_roles(resident, request, words),
    ]
    found.sort(key=lambda each: -each.nbytes)
    found.append(Remedy(resident.take_role("optimizer"), _STATE))
    least = max(1.0, _MIN_SHARE * (ledger.allocated or ledger.named))
    return (*_outside(request, ledger), *(each for each in found if each.nbytes >= least))


def remarks(request: Request, snapshot: Snapshot) -> tuple[str, ...]:
    """Return further facts: limits, and memory that the allocator holds and cannot use."""
    ledger = snapshot.ledger.get(request.device or "")
    impossible = _impossible(request, snapshot)
    found = [] if impossible is None else [impossible]
    if request.device == "cpu":
        limit = address_limit()
        if limit is not None and impossible is None:
            found.append(f"this process may have {format_bytes(limit)} of addresses (ulimit -v)")
    elif ledger is not None and ledger.reserved is not None and ledger.cached is not None:
        text = f"{format_bytes(ledger.reserved)} reserved, {format_bytes(ledger.cached)} of it free"
        largest = _part(ledger, "largest_free")
        if ledger.cached and largest is not None:
            text += f" in pieces, the largest {format_bytes(largest)}"
        found.append(text)
    return tuple(found)


def _impossible(request: Request, snapshot: Snapshot) -> str | None:
    """Return why freeing memory cannot make room for the request; None if it may."""
    ledger = snapshot.ledger.get(request.device or "")
    total = None if ledger is None else ledger.driver_total
    if request.nbytes is None:
        return None
    limit = address_limit() if request.device == "cpu" else None
    if limit is not None and request.nbytes > limit:
        return f"the process may have no more than {format_bytes(limit)} in all (ulimit -v)"
    if total is not None and request.nbytes > total:
        whole = "the machine" if request.device == "cpu" else request.device
        return f"the request alone is more than {whole} has ({format_bytes(total)})"
    return None


class _Resident:
    """Storages of one device that no remedy covers yet."""

    def __init__(self, snapshot: Snapshot, device: str) -> None:
        self.table = table = snapshot.tensors
        self.rows = {
            row: ROLES[table.role[row]]
            for row in table.counted()
            if table.devices[table.device[row]] == device
        }
        """Row to role."""

    def take(self, rows: Iterable[int]) -> int:
        """Cover rows and return their bytes."""
        return sum(
            self.table.storage_nbytes[row]
            for row in set(rows)
            if self.rows.pop(row, None) is not None
        )

    def take_role(self, role: str) -> int:
        """Cover the rows of a role and return their bytes."""
        return self.take([row for row, each in self.rows.items() if each == role])


def _graphs(resident: _Resident, graphs: Sequence[KeptGraph]) -> Iterator[Remedy]:
    """Yield a remedy for each holder of older graphs; the newest is being made or run."""
    table = resident.table
    rows = {table.storage[row]: row for row in resident.rows}
    kept: dict[str, list[int]] = {}
    newest = {address for graph in graphs[-1:] for address in graph.saved}
    for graph in graphs[:-1]:
        saved = [
            rows[address]
            for address in graph.saved - newest
            if address in rows and resident.rows.get(rows[address]) == "activation"
        ]
        holders = [rows[address] for address in graph.holders if address in rows]
        if saved and holders:
            # of several holders the one with the shortest name, such as a list or a global
            name = min((_holder(resident, row) for row in holders), key=len)
            kept.setdefault(name, []).extend(saved)
    for name, found in kept.items():
        nbytes = resident.take(found)
        text = f"what older graphs keep for backward, held by {name}: keep .detach() or .item()"
        yield Remedy(nbytes, text)


def _containers(resident: _Resident) -> Iterator[Remedy]:
    """Yield remedies for lists and dicts of tensors outside models and optimizers."""
    found: dict[int, list[int]] = {}
    names = resident.table.names
    for row, role in resident.rows.items():
        node = _element(resident, row)
        if role in ("activation", "other") and node >= 0 and names.parents[node] >= 0:
            found.setdefault(names.parents[node], []).append(row)
    for node, rows in found.items():
        if len(rows) >= _MIN_TENSORS:
            text = f"{names[node]} holds {len(rows):,} tensors: keep fewer of them at a time"
            yield Remedy(resident.take(rows), text)


def _roles(resident: _Resident, request: Request, words: AdviceWords) -> Iterator[Remedy]:
    if request.phase not in ("backward", "optimizer"):
        text = f"gradients: {words.gradients}"
        yield Remedy(resident.take_role("gradient"), text)
    text = f"activations for backward: {words.activations}"
    yield Remedy(resident.take_role("activation"), text)


def _outside(request: Request, ledger: Ledger) -> Iterator[Remedy]:
    """Yield remedies for memory on an accelerator that is in no tensor."""
    if ledger.device == "cpu":
        return
    others, total = _part(ledger, "other_processes"), ledger.driver_total
    if others and total and others >= 5 * _MIN_SHARE * total:
        text = "other processes and the driver: nvidia-smi lists them"
        yield Remedy(others, text if ledger.device.startswith("cuda") else text.split(":")[0])
    largest, cached = _part(ledger, "largest_free"), ledger.cached
    if request.nbytes is None or largest is None or cached is None:
        return
    if largest < request.nbytes <= cached and not _is_expandable():
        text = f"free, but in pieces too small: PYTORCH_CUDA_ALLOC_CONF={_EXPANDABLE}"
        yield Remedy(cached, text)


def _is_expandable() -> bool:
    return any(_EXPANDABLE.lower() in os.environ.get(name, "").lower() for name in _SETTINGS)


def _part(ledger: Ledger, key: str) -> int | None:
    return next((part.nbytes for part in ledger.parts if part.key == key), None)


def _element(resident: _Resident, row: int) -> int:
    """Return the innermost node of a row's name that is an index or a key; -1 if none is."""
    names, node = resident.table.names, resident.table.name[row]
    while node >= 0 and names.kinds[node] not in (INDEX, KEY):
        node = names.parents[node]
    return node


def _holder(resident: _Resident, row: int) -> str:
    """Return the name of the list or dict that holds a tensor, or its own name."""
    names, node = resident.table.names, _element(resident, row)
    above = -1 if node < 0 else names.parents[node]
    return names[resident.table.name[row]] if above < 0 else names[above]
