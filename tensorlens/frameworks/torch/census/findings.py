"""A census of torch's tensors: find, read and name them, and put them into a table.

The heap's objects are kept alive meanwhile, so that no address is used twice. The result refers to
no tensor.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container, Iterator, Sequence

from tensorlens.frameworks.base import CensusRoot, Findings
from tensorlens.frameworks.host.allocator import NativeAllocator
from tensorlens.frameworks.host.census_table import (
    add_births,
    choose_counted,
    name_the_rest,
)
from tensorlens.frameworks.host.recorder import ModulePath
from tensorlens.frameworks.torch import cpu
from tensorlens.frameworks.torch.census.device_ledger import device_ledgers
from tensorlens.frameworks.torch.census.graph import node_types
from tensorlens.frameworks.torch.census.live_tensors import FoundTensors
from tensorlens.frameworks.torch.census.names.named_rows import NamedRows
from tensorlens.frameworks.torch.census.names.owners import HEAP_CLASSES, Owners
from tensorlens.frameworks.torch.census.undisturbed import undisturbed
from tensorlens.heap import Heap, live_objects, near_heap, select, why_no_names
from tensorlens.interpreter import frozen_objects
from tensorlens.records.logs.stacks import LAYERS
from tensorlens.records.tensors import TensorTable
from tensorlens.roles import ROLES

_ACTIVATION, _INPUT = ROLES.index("activation"), ROLES.index("input")
_COPIED_COLUMNS = (
    "nbytes",
    "storage",
    "storage_nbytes",
    "offset",
    "device",
    "dtype",
    "shape",
    "stride",
)


def tabulate(
    found: FoundTensors, named: NamedRows, allocator: NativeAllocator | None
) -> TensorTable:
    """Build the table of all tensors; each storage is counted in one row."""
    table = TensorTable()
    scan = found.scan
    rows = _table_rows(found, named)
    for column in _COPIED_COLUMNS:
        # for all rows the scan's own columns, which change no more
        setattr(table, column, _selected(getattr(scan, column), rows))
    table.role, table.name = _selected(named.role, rows), _selected(named.node, rows)
    table.names = named.names
    # torch's own spelling has no number: there is one device
    table.devices = ["mps" if device == "mps:0" else device for device in scan.devices]
    table.dtypes = list(scan.dtypes)
    table.shapes = list(scan.shapes)
    add_births(table, allocator)
    _set_made_inputs(table)
    _add_sparse(table, rows, named)
    plain = isinstance(rows, range)
    if not plain:
        name_the_rest(table)
    # rows of autograd may share storages with others
    if found.sharing or len(scan) > found.in_python:
        choose_counted(table, _selected(scan.first, rows))
    return table


def _set_made_inputs(table: TensorTable) -> None:
    """Turn inputs that a layer made into activations: so far they are what autograd saved."""
    if _INPUT not in table.role:
        return
    for row, role in enumerate(table.role):
        if role != _INPUT:
            continue
        born, model = table.born[row], table.model_line[row]
        is_made = born >= 0 and table.lines[born].function.rpartition(".")[2] in LAYERS
        if is_made or model >= 0:
            table.role[row] = _ACTIVATION


def _table_rows(found: FoundTensors, named: NamedRows) -> Sequence[int]:
    """Return the table's rows: named ones, and one before ``in_python`` of each unnamed storage.

    A range means all rows, all named.
    """
    node, seen = named.node, found.in_python
    if len(node) == seen and not found.parts and (not node or min(node) >= 0):
        return range(seen)
    first, storage = found.scan.first, found.scan.storage
    whole = {row for row, parts in found.parts.items() if parts and storage[row] == 0}
    named_storages = named.named_storages()
    python: list[int] = []
    autograd: list[int] = []
    for row, name in enumerate(node):
        if row in whole:
            continue
        if name < 0:
            # a tensor that only C++ holds adds nothing to a storage that has a name
            if row >= seen or first[row] in named_storages:
                continue
            named_storages.add(first[row])
        (autograd if row in named.of_graph else python).append(row)
    # by address: Python's objects of autograd's tensors come and go, and so does their order
    return python + sorted(autograd, key=storage.__getitem__)


def _selected(values: array[int], rows: Sequence[int]) -> array[int]:
    if isinstance(rows, range):
        return values
    return array(values.typecode, map(values.__getitem__, rows))


def _wanted_rows(wanted: Container[int], rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield ``(index in the table, row of the scan)`` for the wanted rows."""
    if wanted:
        yield from ((index, row) for index, row in enumerate(rows) if row in wanted)


def _add_sparse(table: TensorTable, rows: Sequence[int], named: NamedRows) -> None:
    """Fill the columns that are empty in most rows."""
    for name in ("module", "held_by", "note", "alias"):
        setattr(table, name, array("i", [-1]) * len(rows))
    for index, row in _wanted_rows(named.module, rows):
        table.module[index] = named.module[row]
    for index, row in _wanted_rows(named.more, rows):
        nodes = named.more[row]
        table.more_names[index] = tuple(dict.fromkeys(table.names[node] for node in nodes))
    for texts, numbers, column in (
        (named.held_by, table.holders, table.held_by),
        (named.notes, table.notes, table.note),
    ):
        known: dict[str, int] = {}
        for index, row in _wanted_rows(texts, rows):
            column[index] = known.setdefault(texts[row], len(known))
        numbers.extend(known)


def census(roots: Sequence[CensusRoot]) -> Findings:
    """Return all live tensors by name, the ledger of each device, and notes for the reader."""
    allocator = cpu.allocator()
    with undisturbed() as can_read:
        found, _, named = _find_and_name(roots, Heap(live_objects()), can_read)
        table = tabulate(found, named, allocator)
        ledger = {"cpu": cpu.cpu_ledger(table), **device_ledgers(table)}
    reasons = filter(None, (cpu.fallback_reason(), why_no_names()))
    return Findings(table, ledger, (*_notes(found), *reasons))


def named_tensors(roots: Sequence[CensusRoot], *, near: bool) -> tuple[TensorTable, ModulePath]:
    """Return the live tensors by name, and a function that returns the paths of modules.

    Args:
        roots: models, optimizers and other objects that names begin with.
        near: only look at objects near the running functions, and at autograd's graphs found from
            these: takes a few milliseconds for a heap of any size.
    """
    allocator = cpu.allocator()
    with undisturbed() as can_read:
        heap = near_heap() if near else Heap(live_objects())
        found, owners, named = _find_and_name(roots, heap, can_read)
        return tabulate(found, named, allocator), owners.module_path()


def _find_and_name(
    roots: Sequence[CensusRoot], heap: Heap, can_read: Callable[[], bool]
) -> tuple[FoundTensors, Owners, NamedRows]:
    # a near heap is not searched for these hundreds of types: few programs hold a node
    exact = node_types() if heap.modules is None else ()
    tensors, functions, modules, optimizers, nodes = select(heap.objects, HEAP_CLASSES, exact)
    owners = Owners(roots, heap.objects, modules, optimizers)
    found = FoundTensors(tensors, owners.naming, (*functions, *nodes), can_read)
    return found, owners, NamedRows(found, owners, heap)


def _notes(found: FoundTensors) -> list[str]:
    graph, frozen = found.graph, frozen_objects()
    counts = (
        (found.scan.fakes, "fake tensors were left out: they hold no memory"),
        (
            graph.recomputed,
            "values are checkpointed: nothing of them is kept, backward computes them again",
        ),
        (
            graph.reentrant,
            "regions are checkpointed (reentrant): nothing of what they computed is kept, backward "
            "computes it again",
        ),
        (
            graph.packed,
            "values are packed by saved-tensor hooks into something that holds no tensor",
        ),
        (graph.unread, "values that autograd saved could not be read"),
    )
    notes = [f"{count} {text}" for count, text in counts if count]
    if not graph.is_whole:
        notes.insert(
            0,
            "another thread is in a long backward pass: not all of what autograd's "
            "graphs hold was looked at",
        )
    if frozen:
        notes.append(
            f"gc.freeze() hides {frozen} objects: tensors among them are only found from models, "
            "optimizers and gradients"
        )
    return notes
