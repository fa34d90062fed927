"""The ledger of a device: where every byte that the driver says is in use belongs.

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
"""Each total and the figures that add up to it, from the outside in."""

FIGURES = (
    *("allocated", "named", "unnamed", "reserved", "cached"),
    *("other", "driver_used", "driver_total"),
)
"""The fields of a :class:`Ledger` that are bytes."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of one of the ledger's figures: the largest free block, mapped files."""

    of: str
    """The figure it is a part of: ``cached``, ``reserved``, ``other``, ``named``."""
    key: str
    label: str
    nbytes: int | None
    explanation: str
    """One line: what it is, and where the figure comes from."""


@dataclass(frozen=True, slots=True)
class UnnamedBlock:
    """Memory handed out that no known tensor accounts for."""

    address: int
    nbytes: int
    born: SourceLine | None = None
    """The line that allocated it, where births were watched or history was on."""
    stack: tuple[SourceLine, ...] = ()
    """The frames above it, innermost first, where the allocator recorded them."""
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
    """Of it, what belongs to the tensors of the snapshot, each storage once."""
    unnamed: int | None = None
    """Of it, what no known tensor accounts for."""
    reserved: int | None = None
    """Held by the allocator from the driver; on the CPU the process's resident set."""
    cached: int | None = None
    """Of it, what is not handed out; on the CPU everything else that is resident."""
    other: int | None = None
    """In use on the device besides what is reserved here."""
    driver_used: int | None = None
    """In use on the whole device, as the driver tells; on the CPU the machine's."""
    driver_total: int | None = None
    """Memory of the device."""
    parts: tuple[Part, ...] = ()
    explanations: Mapping[str, str] = field(default_factory=dict)
    """Field to one line that says what it is on this device."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Field to the reason it is None."""
    blocks: tuple[UnnamedBlock, ...] = ()
    """The largest of the blocks that make up ``unnamed``."""
    block_count: int = 0
    """How many blocks make up ``unnamed``."""
