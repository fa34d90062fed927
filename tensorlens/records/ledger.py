"""The ledger of a device: where every byte in use, as the driver reports it, belongs.

It balances by construction::

    driver_used = reserved + other
    reserved    = allocated + cached
    allocated   = named + unnamed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tensorlens.records.tensors import SourceLine

BALANCE = (
    ("driver_used", ("reserved", "other")),
    ("reserved", ("allocated", "cached")),
    ("allocated", ("named", "unnamed")),
)
"""Totals and the figures that add up to them, the outermost first."""

FIGURES = (
    *("allocated", "named", "unnamed", "reserved", "cached"),
    *("other", "driver_used", "driver_total"),
)
"""Fields of a :class:`Ledger` in bytes."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of one of the ledger's figures: the largest free block, mapped files."""

    of: str
    """The figure it is a part of: ``cached``, ``reserved``, ``other``, ``named``."""
    key: str
    label: str
    nbytes: int | None
    explanation: str
    """Meaning and source of the figure, in one line."""


@dataclass(frozen=True, slots=True)
class UnnamedBlock:
    """Allocated memory of no known tensor."""

    address: int
    nbytes: int
    born: SourceLine | None = None
    """Line that allocated it, if births were watched or history was on."""
    stack: tuple[SourceLine, ...] = ()
    """Frames above it, innermost first, if the allocator recorded them."""
    what: str | None = None
    """Note on it: the operator that made it."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """One device's memory at one moment, in bytes; None is unknown, and ``missing`` says why."""

    device: str
    source: str
    """Name of the counter, for the header."""
    precision: str
    allocated: int | None
    """Handed out by the allocator."""
    named: int
    """Part of ``allocated`` in tensors of the snapshot, each storage once."""
    unnamed: int | None = None
    """Part of ``allocated`` in no known tensor."""
    reserved: int | None = None
    """Held by the allocator from the driver; on the CPU the process's resident set."""
    cached: int | None = None
    """Part of ``reserved`` that is not allocated; on the CPU all other resident memory."""
    other: int | None = None
    """In use on the device beside the memory reserved here."""
    driver_used: int | None = None
    """In use on the whole device, from the driver; on the CPU that of the machine."""
    driver_total: int | None = None
    """Memory of the device."""
    parts: tuple[Part, ...] = ()
    explanations: Mapping[str, str] = field(default_factory=dict)
    """Field to its meaning on this device, in one line."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Field to the reason it is None."""
    blocks: tuple[UnnamedBlock, ...] = ()
    """Largest blocks of ``unnamed``."""
    block_count: int = 0
    """Number of blocks of ``unnamed``."""
