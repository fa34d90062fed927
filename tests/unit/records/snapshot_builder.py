"""Snapshots made by hand, without any framework."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tensorlens import Snapshot
from tensorlens.records import Ledger, SourceLine, TensorTable
from tensorlens.roles import ROLES

ITEM = {"float32": 4, "float16": 2, "int64": 8, "uint8": 1}


@dataclass(frozen=True)
class T:
    """A tensor as a test writes it."""

    name: str
    shape: tuple[int, ...] = (1,)
    role: str = "other"
    device: str = "cpu"
    dtype: str = "float32"
    storage_nbytes: int | None = None
    """As many as it shows, unless told."""
    storage: int | None = None
    """An address of its own, unless told."""
    alias_of: str | None = None
    held_by: str | None = None
    born: tuple[str, int] | None = None
    also: tuple[str, ...] = ()
    module: str | None = None
    note: str | None = None
    offset: int = 0


def table_of(tensors: Iterable[T]) -> TensorTable:
    table = TensorTable()
    nodes: dict[str, int] = {}
    rows: dict[str, int] = {}
    for row, tensor in enumerate(tensors):
        nbytes = math.prod(tensor.shape) * ITEM[tensor.dtype]
        owner = None if tensor.alias_of is None else rows[tensor.alias_of]
        size = nbytes if tensor.storage_nbytes is None else tensor.storage_nbytes
        address = 0x1000 * (row + 1) if tensor.storage is None else tensor.storage
        if owner is not None:
            size, address = table.storage_nbytes[owner], table.storage[owner]
        stride = tuple(math.prod(tensor.shape[i + 1 :]) for i in range(len(tensor.shape)))
        table.nbytes.append(nbytes)
        table.storage.append(address)
        table.storage_nbytes.append(size)
        table.offset.append(tensor.offset)
        table.role.append(ROLES.index(tensor.role))
        table.device.append(_number(table.devices, tensor.device))
        table.dtype.append(_number(table.dtypes, tensor.dtype))
        table.shape.append(_number(table.shapes, tensor.shape))
        table.stride.append(_number(table.shapes, stride))
        table.name.append(_node(table, nodes, tensor.name))
        table.alias.append(-1 if owner is None else owner)
        table.held_by.append(_number(table.holders, tensor.held_by))
        born = tensor.born and SourceLine(*tensor.born, "step")
        table.born.append(_number(table.lines, born))
        table.model_line.append(-1)
        table.module.append(-1 if tensor.module is None else _node(table, nodes, tensor.module))
        table.note.append(_number(table.notes, tensor.note))
        if tensor.also:
            table.more_names[row] = (tensor.name, *tensor.also)
        rows[tensor.name] = row
    return table


def ledger_of(device: str, named: int, **figures: object) -> Ledger:
    """A ledger that balances: 1 GiB in all unless told; unnamed and cached are 0."""
    allocated = figures.pop("allocated", named)
    reserved = figures.pop("reserved", allocated)
    used = figures.pop("driver_used", reserved)

    def less(total: object, part: object) -> int | None:
        return total - part if isinstance(total, int) and isinstance(part, int) else None

    values: dict[str, object] = {
        "source": "counting allocator",
        "precision": "exact",
        "allocated": allocated,
        "unnamed": less(allocated, named),
        "reserved": reserved,
        "cached": less(reserved, allocated),
        "driver_used": used,
        "other": less(used, reserved),
        "driver_total": 1024**3,
        **figures,
    }
    return Ledger(device=device, named=named, **values)  # type: ignore[arg-type]


def snapshot_of(
    tensors: Iterable[T] = (), ledgers: Mapping[str, Ledger] | None = None, **fields: object
) -> Snapshot:
    """A snapshot of these tensors; where no ledger is told, all that is allocated is named."""
    table = table_of(tensors)
    if ledgers is None:
        totals: dict[str, int] = {}
        for (device, _), size in table.role_totals().items():
            totals[device] = totals.get(device, 0) + size
        ledgers = {name: ledger_of(name, total) for name, total in totals.items() if name != "meta"}
    return Snapshot(table, ledgers, **fields)  # type: ignore[arg-type]


def _number(items: list, item: object) -> int:
    if item is None:
        return -1
    if item not in items:
        items.append(item)
    return items.index(item)


def _node(table: TensorTable, nodes: dict[str, int], name: str) -> int:
    if name not in nodes:
        names = table.names
        if match := re.fullmatch(r"(.+)\[(\d+)\]", name, re.DOTALL):
            nodes[name] = names.index(_node(table, nodes, match[1]), int(match[2]))
        elif match := re.fullmatch(r"(.+)\['([^']*)'\]", name, re.DOTALL):
            nodes[name] = names.key(_node(table, nodes, match[1]), match[2])
        elif match := re.fullmatch(r"(.+\].*)\.(\w+)", name, re.DOTALL):
            nodes[name] = names.attribute(_node(table, nodes, match[1]), match[2])
        else:
            nodes[name] = names.text(name)
    return nodes[name]
