"""Merges the censuses of several frameworks: one table without duplicates, one ledger a device."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate

from tensorlens.frameworks.base import Adapter, CensusRoot, Findings
from tensorlens.frameworks.host.ledger import REASONS, balanced, difference, fitted
from tensorlens.frameworks.registry import ask, unusable_notes
from tensorlens.records.ledger import Ledger, Part
from tensorlens.records.tensors import TensorTable, merge_tables

Owned = tuple[str, Ledger]
"""A framework's name and its ledger of a device."""


def census(adapters: Sequence[Adapter], roots: Sequence[CensusRoot]) -> Findings:
    """Return the live tensors of all frameworks, and each device's ledger over all frameworks.

    Memory that frameworks share through DLPack or NumPy is counted once, at its owner's tensor.

    Args:
        adapters: one for each framework.
        roots: models and other objects with which names begin.

    Raises:
        Exception: every framework's census failed.
    """
    answers, failed = ask(adapters, lambda each: each.census(roots))
    found = _merged([(adapter.name, each) for adapter, each in answers])
    lines = (f"{name} could not be looked at: {reason}" for name, reason in failed.items())
    return replace(found, notes=(*found.notes, *lines, *unusable_notes()))


def _merged(found: Sequence[tuple[str, Findings]]) -> Findings:
    if len(found) == 1:
        return found[0][1]
    notes = [note for _, each in found for note in each.notes]
    devices = dict.fromkeys(device for _, each in found for device in each.ledger)
    ledger = {}
    for device in devices:
        own = [(name, each.ledger[device]) for name, each in found if device in each.ledger]
        if device == "cpu":
            own, left_out = _counting(own)
            notes += left_out
        ledger[device] = _merged_ledger(own)
    table = merge_tables(("", each.tensors) for _, each in found)
    _count_once(table, [len(each.tensors) for _, each in found])
    return Findings(table, ledger, tuple(dict.fromkeys(notes)))


def _count_once(table: TensorTable, lengths: Sequence[int]) -> None:
    """Count each storage once that two frameworks list: make one row an alias of the other."""
    ends = [*accumulate(lengths)]
    owners: dict[tuple[int, int], int] = {}
    moved: dict[int, int] = {}
    for row in table.counted():
        if not table.storage[row] or not table.storage_nbytes[row]:
            continue
        key = table.device[row], table.storage[row]
        other = owners.setdefault(key, row)
        if bisect(ends, other) == bisect(ends, row):
            continue
        # the row of a framework that borrows the memory has a note
        if table.note[other] >= 0 > table.note[row]:
            owners[key] = row
            moved[other] = row
        else:
            moved[row] = other
    if not moved:
        return
    for row, owner in enumerate(table.alias):
        to = row if owner < 0 else owner
        while to in moved:
            to = moved[to]
        if to != row:
            table.alias[row] = to


def _counting(own: list[Owned]) -> tuple[list[Owned], list[str]]:
    """Return the ledgers that have figures or tensors, or all if none has; and notes on others."""
    unknown = [each for each in own if each[1].allocated is None and not each[1].named]
    if not unknown or len(unknown) == len(own):
        return own, []
    notes = [
        f"{name}: what it took on the {ledger.device} is not in the ledger: "
        + ledger.missing.get("allocated", "it is not counted")
        for name, ledger in unknown
    ]
    return [each for each in own if each not in unknown], notes


def _merged_ledger(own: Sequence[Owned]) -> Ledger:
    if len(own) == 1:
        return own[0][1]
    ledgers = [ledger for _, ledger in own]
    first = ledgers[0]
    is_host = first.device == "cpu"
    missing = {key: reason for each in ledgers for key, reason in each.missing.items()}
    allocated = _total(own, "allocated", missing)
    # a process has one resident set; on a device each framework has its own pool
    reserved = _known(ledgers, "reserved") if is_host else _total(own, "reserved", missing)
    used, total = _known(ledgers, "driver_used"), _known(ledgers, "driver_total")
    known = {"reserved": reserved, "driver_used": used, "driver_total": total}
    for name in ("unnamed", "cached", "other"):
        missing.pop(name, None)
    for name, figure in known.items():
        if figure is not None:
            missing.pop(name, None)
    blocks = sorted((block for each in ledgers for block in each.blocks), key=lambda b: -b.nbytes)
    cached = difference(reserved, allocated)
    ledger = Ledger(
        first.device,
        " and ".join(dict.fromkeys(each.source for each in ledgers)),
        "; ".join(dict.fromkeys(each.precision for each in ledgers)),
        named=sum(each.named for each in ledgers),
        allocated=allocated,
        reserved=reserved,
        driver_used=used,
        driver_total=total,
        missing=missing,
        # the parts of a shared accelerator are left out
        parts=fitted(_host_parts(ledgers, cached), cached) if is_host else (),
        explanations={**ledgers[-1].explanations, **first.explanations},
        blocks=tuple(blocks),
        block_count=sum(each.block_count for each in ledgers),
    )
    return balanced(ledger, REASONS if is_host else {})


def _total(own: Sequence[Owned], field: str, missing: dict[str, str]) -> int | None:
    """Return the sum of a figure; None if one is unknown, with its reason put into ``missing``."""
    total = 0
    for name, ledger in own:
        value = getattr(ledger, field)
        if value is None:
            reason = ledger.missing.get(field, "no reason was given")
            missing[field] = f"{name}: {reason}"
            return None
        total += value
    return total


def _known(ledgers: Iterable[Ledger], field: str) -> int | None:
    values = (getattr(ledger, field) for ledger in ledgers)
    return next((value for value in values if value is not None), None)


def _host_parts(ledgers: Sequence[Ledger], cached: int | None) -> list[Part]:
    """Return the parts of resident memory; the first ledger's heap contains the others' tensors."""
    parts = [part for each in ledgers for part in each.parts if part.of != "cached"]
    if cached is None:
        return parts
    others = sum(each.allocated or 0 for each in ledgers[1:])
    own = {part.key: part for part in ledgers[0].parts if part.of == "cached"}
    rest = own.get("heap") or own.get("rest")
    if rest is not None and rest.nbytes is not None:
        own[rest.key] = replace(rest, nbytes=rest.nbytes - others)
    return [*own.values(), *parts]
