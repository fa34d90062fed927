"""What a leak report shows, decided once for text and HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tensorlens.records.leaks import (
    Balance,
    BelowLine,
    Example,
    Leak,
    LeakKind,
    LeakReport,
    ReferencePath,
)
from tensorlens.render.balance import place
from tensorlens.render.figures import UNKNOWN, size
from tensorlens.render.inventory import counted
from tensorlens.render.source import printable

ARROW = "-> "
NOT_SEEN = "nothing that can be seen from Python"
_MOST_BELOW = 8
"""Lines of what hangs below that are shown, those with the most bytes."""
_FURTHER = "... "
"""What a path begins with whose beginning is not known."""


@dataclass(frozen=True, slots=True)
class LeakLayout:
    """One leak as it is shown."""

    leak: Leak
    rate: str
    """``1 tensor, 1.94 KiB a step``."""
    where: str
    """``train.py:12 in step``."""
    held_by: tuple[str, ...]
    """The references of the shortest path, from the second on with an arrow in front."""
    also_held_by: tuple[tuple[str, ...], ...]
    below: tuple[tuple[str, str], ...]
    """What hangs below, a line's each, and the source of the line."""
    example: tuple[str, ...]
    """The name, and then what it is, in parts that may stand on lines of their own."""


@dataclass(frozen=True, slots=True)
class Levels:
    """What a device had allocated after each step."""

    device: str
    known: tuple[int, ...]
    """The levels that could be had."""
    text: str
    """``1.00 KiB to 2.00 KiB``."""


def layouts(report: LeakReport) -> tuple[LeakLayout, ...]:
    """Return how each leak of the report is shown."""
    return tuple(map(_layout, report.leaks))


def watched(report: LeakReport) -> str:
    """Return how long was looked: ``6 steps after 2 of warm-up``."""
    steps = "1 step" if report.steps == 1 else f"{report.steps:,} steps"
    return f"{steps} after {report.warmup:,} of warm-up" if report.warmup else steps


def levels(report: LeakReport) -> tuple[Levels, ...]:
    """Return the allocated bytes of each device that has any."""
    found = []
    for device, series in report.allocated.items():
        known = tuple(each for each in series if each >= 0)
        if known and any(known):
            first, last = size(known[0]), size(known[-1])
            text = last if first == last else f"{first} to {last}"
            found.append(Levels(device, known, text))
    return tuple(found)


def balances(report: LeakReport) -> tuple[tuple[str, str], ...]:
    """Return by what each device's memory grew a step, and in what, of those where any did."""
    return tuple(
        (device, _balance(each))
        for device, each in report.balance.items()
        if any((each.growth, each.leaks, each.unknown, each.freed))
    )


def _balance(balance: Balance) -> str:
    parts = {
        "leaks": balance.leaks,
        "garbage": balance.garbage,
        "filling": balance.filling,
        "rounding": balance.rounding,
        "unknown": balance.unknown,
        "freed": -balance.freed,
    }
    steps = max(1, balance.steps)
    known = [f"{name} {_signed(value / steps)}" for name, value in parts.items() if value]
    growth = f"{_signed(balance.growth / steps)} a step"
    return f"{growth}: {', '.join(known)}" if known else growth


def _signed(value: float) -> str:
    amount = size(round(abs(value)))
    return f"-{amount}" if value < 0 else f"+{amount}"


def thinned(series: Sequence[int], most: int) -> list[int]:
    """Return at most ``most`` levels, the first and the last among them."""
    if len(series) <= most:
        return [*series]
    last = len(series) - 1
    return [series[round(at * last / (most - 1))] for at in range(most)]


def rate(tensors: float, nbytes: float) -> str:
    """Return ``2 tensors, 8.00 KiB a step``; without tensors it is one that gets larger."""
    amount = f"{size(round(nbytes))} a step"
    if not tensors:
        return f"one tensor that grows, {amount}"
    return f"{_number(tensors)} tensor{'' if tensors == 1 else 's'}, {amount}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"


def _layout(leak: Leak) -> LeakLayout:
    return LeakLayout(
        leak=leak,
        rate=rate(leak.tensors_per_step, leak.bytes_per_step)
        + ("" if leak.kind == LeakKind.LEAK else f": {leak.kind}"),
        where=place(leak.born, function=True) if leak.born else "a line that is not known",
        held_by=_held_by(leak),
        also_held_by=tuple(map(_references, leak.paths[1:])),
        below=_below(leak.below),
        example=_example(leak.example, leak) if leak.example else (),
    )


def _below(lines: Sequence[BelowLine]) -> tuple[tuple[str, str], ...]:
    shown = []
    for each in lines[:_MOST_BELOW]:
        where = place(each.born, function=True) if each.born else "a line that is not known"
        amount = f"{rate(each.tensors_per_step, each.bytes_per_step)}, {printable(each.role)}"
        shown.append((f"{amount}, made at {where}", each.source))
    rest = lines[_MOST_BELOW:]
    if rest:
        nbytes = size(round(sum(each.bytes_per_step for each in rest)))
        lines_text = "1 more line" if len(rest) == 1 else f"{len(rest)} more lines"
        shown.append((f"{nbytes} a step, made at {lines_text}", ""))
    return tuple(shown)


def _held_by(leak: Leak) -> tuple[str, ...]:
    if leak.paths:
        return _references(leak.paths[0])
    if not leak.path:
        return (NOT_SEEN,)
    return _with_arrows(leak.path.split(f" {ARROW}"))


def _references(path: ReferencePath) -> tuple[str, ...]:
    found = _with_arrows([reference.text for reference in path.references])
    return (_FURTHER, ARROW + found[0], *found[1:]) if path.is_cut and found else found


def _with_arrows(texts: Sequence[str]) -> tuple[str, ...]:
    shown = [*map(printable, texts)]
    return (*shown[:1], *(ARROW + text for text in shown[1:]))


def _example(example: Example, leak: Leak) -> tuple[str, ...]:
    name = printable(example.name) or "a tensor without a name"
    shape = f"({', '.join(map(str, example.shape))}{',' if len(example.shape) == 1 else ''})"
    kind = f"{printable(example.dtype)} {shape}" if example.dtype else UNKNOWN
    parts = [kind, size(example.nbytes)]
    if example.nbytes < example.storage_nbytes:
        parts[-1] += f" of a storage of {size(example.storage_nbytes)}"
    if example.grad_fn:
        parts.append(f"grad_fn {printable(example.grad_fn)}")
    parts.append(f"{printable(leak.role)} on {printable(leak.device)}")
    parts.append(f"made {_ago(example.age)}")
    if example.below or example.below_tensors:
        below = f"below it {counted(example.below_tensors)}, {size(example.below)}"
        parts.append(below)
    return (name, *parts)


def _ago(steps: int) -> str:
    if steps < 1:
        return "in the last step"
    return "1 step ago" if steps == 1 else f"{steps:,} steps ago"


def heights(series: Sequence[int]) -> list[float]:
    """Return levels from 0 to 1, from the lowest to the highest; all alike are 0."""
    low, high = min(series), max(series)
    return [(each - low) / (high - low) if high > low else 0.0 for each in series]


def bars(series: Sequence[int], marks: str) -> str:
    """Return a line of marks, a mark for each level: the lowest the first, the highest the last."""
    last = len(marks) - 1
    return "".join(marks[math.floor(height * last + 0.5)] for height in heights(series))
