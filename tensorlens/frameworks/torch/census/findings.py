"""A census of torch's tensors: found, read, named, and put in a table.

The heap's objects are pinned while it goes on, so that no address is given out twice, and let go
at its end: nothing of it refers to a tensor.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container, Iterator, Sequence

import torch

from tensorlens.frameworks.base import CensusRoot, Findings
from tensorlens.frameworks.host.census_table import (
    Births,
    add_births,
    choose_counted,
    name_the_rest,
)
from tensorlens.frameworks.host.recorder import ModulePath
from tensorlens.frameworks.torch import cpu
from tensorlens.frameworks.torch.census.device_ledger import device_ledgers
from tensorlens.frameworks.torch.census.graph import node_types
from tensorlens.frameworks.torch.census.live_tensors import FoundTensors
from tensorlens.frameworks.torch.census.names.modules import instance_dict
from tensorlens.frameworks.torch.census.names.named_rows import NamedRows
from tensorlens.frameworks.torch.census.names.owners import Owners
from tensorlens.frameworks.torch.census.undisturbed import undisturbed
from tensorlens.heap import Heap, live_objects, near_heap, select, why_no_names
from tensorlens.interpreter import frozen_objects
from tensorlens.records.logs.stacks import LAYERS
from tensorlens.records.tensors import TensorTable
from tensorlens.roles import ROLES

_ACTIVATION, _INPUT = ROLES.index("activation"), ROLES.index("input")
_PLAIN = ("nbytes", "storage", "storage_nbytes", "offset", "device", "dtype", "shape", "stride")


def tabulate(found: FoundTensors, named: NamedRows, births: Births) -> TensorTable:
    """Return the table of everything found; each storage is counted in one row."""
    table = TensorTable()
    scan = found.scan
    rows = _kept(found, named)
    for column in _PLAIN:
        # of all rows the columns themselves: the scan is over
        setattr(table, column, _picked(getattr(scan, column), rows))
    table.role, table.name = _picked(named.role, rows), _picked(named.node, rows)
    table.names = named.names
    # there is one: torch's own spelling of it has no number
    table.devices = ["mps" if device == "mps:0" else device for device in scan.devices]
    table.dtypes = list(scan.dtypes)
    table.shapes = list(scan.shapes)
    add_births(table, births)
    _set_made_inputs(table)
    _add_sparse(table, rows, named)
    plain = isinstance(rows, range)
    if not plain:
        name_the_rest(table)
    # autograd's rows may share storages with others
    if found.sharing or len(scan) > found.in_python:
        choose_counted(table, _picked(scan.first, rows))
    return table


def _set_made_inputs(table: TensorTable) -> None:
    """Make inputs of autograd's nodes activations that a layer made: they are no one's input."""
    if _INPUT not in table.role:
        return
    for row, role in enumerate(table.role):
        if role != _INPUT:
            continue
        born, model = table.born[row], table.model_line[row]
        is_made = born >= 0 and table.lines[born].function.rpartition(".")[2] in LAYERS
        if is_made or model >= 0:
            table.role[row] = _ACTIVATION


def _kept(found: FoundTensors, named: NamedRows) -> Sequence[int]:
    """Return the rows that stand for a tensor of someone's, or a storage of autograd's own.

    A range: all of them, and all have a name.
    """
    node, seen = named.node, found.in_python
    if len(node) == seen and not found.parts and (not node or min(node) >= 0):
        return range(seen)
    first, storage = found.scan.first, found.scan.storage
    whole = {row for row, parts in found.parts.items() if parts and storage[row] == 0}
    standing = named.standing()
    python: list[int] = []
    autograd: list[int] = []
    for row, name in enumerate(node):
        if row in whole:
            continue
        if name < 0:
            # an object that only C++ holds tells nothing new of a storage that has a name
            if row >= seen or first[row] in standing:
                continue
            standing.add(first[row])
        (autograd if row in named.of_graph else python).append(row)
    # Python's objects of what autograd holds come and go, and with them the order of the heap
    return python + sorted(autograd, key=storage.__getitem__)


def _picked(values: array[int], rows: Sequence[int]) -> array[int]:
    if isinstance(rows, range):
        return values
    return array(values.typecode, map(values.__getitem__, rows))


def _places_of(wanted: Container[int], rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Give ``(index in the table, row of the scan)`` of the rows that are wanted."""
    if wanted:
        yield from ((index, row) for index, row in enumerate(rows) if row in wanted)


def _add_sparse(table: TensorTable, rows: Sequence[int], named: NamedRows) -> None:
    """Fill the columns that most rows have nothing in."""
    for name in ("module", "held_by", "note", "alias"):
        setattr(table, name, array("i", [-1]) * len(rows))
    for index, row in _places_of(named.module, rows):
        table.module[index] = named.module[row]
    for index, row in _places_of(named.more, rows):
        nodes = named.more[row]
        table.more_names[index] = tuple(dict.fromkeys(table.names[node] for node in nodes))
    for texts, numbers, column in (
        (named.held_by, table.holders, table.held_by),
        (named.notes, table.notes, table.note),
    ):
        known: dict[str, int] = {}
        for index, row in _places_of(texts, rows):
            column[index] = known.setdefault(texts[row], len(known))
        numbers.extend(known)


_HEAP_CLASSES = (torch.Tensor, torch._C._FunctionBase, torch.nn.Module, torch.optim.Optimizer)


def census(roots: Sequence[CensusRoot]) -> Findings:
    """Return every live tensor by name, the ledger of each device, and notes for the reader."""
    births = Births(cpu.allocator())
    with undisturbed() as can_read:
        found, _, named = _census(roots, Heap(live_objects()), can_read)
        table = tabulate(found, named, births)
        ledger = {"cpu": cpu.cpu_ledger(table, cpu.cpu_counter(), births), **device_ledgers(table)}
    reasons = filter(None, (cpu.fallback_reason(), why_no_names()))
    return Findings(table, ledger, (*_notes(found), *reasons))


def named_tensors(roots: Sequence[CensusRoot], *, near: bool) -> tuple[TensorTable, ModulePath]:
    """Return the live tensors by name, and what gives the paths of the modules.

    Args:
        roots: models, optimizers and others that names begin with.
        near: those alone that the running functions lead to, and what autograd's graphs hold
            that are found from these: it takes a few milliseconds, whatever the heap holds.
    """
    births = Births(cpu.allocator())
    with undisturbed() as can_read:
        heap = near_heap() if near else Heap(live_objects())
        found, owners, named = _census(roots, heap, can_read)
        return tabulate(found, named, births), owners.module_path()


def _census(
    roots: Sequence[CensusRoot], heap: Heap, can_read: Callable[[], bool]
) -> tuple[FoundTensors, Owners, NamedRows]:
    # a program that holds a node by itself is rare, and there are hundreds of types of nodes
    exact = node_types() if heap.modules is None else ()
    tensors, functions, modules, optimizers, nodes = select(heap.objects, _HEAP_CLASSES, exact)
    owners = Owners(roots)
    owners.add_keras(heap.objects)
    owners.add_found(modules, optimizers)
    # Python makes the dict of an instance when it is first asked for
    heap.objects.extend(filter(None, map(instance_dict, optimizers)))
    found = FoundTensors(tensors, owners.naming, (*functions, *nodes), can_read)
    named = NamedRows(found, owners, heap)
    found.scan.close()
    return found, owners, named


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
