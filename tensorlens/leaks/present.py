"""Presenter of a leak report: the verdict, each leak with its holders, other growth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorlens.leaks.report import (
    Balance,
    BelowLine,
    Example,
    Growth,
    Leak,
    LeakKind,
    LeakReport,
    place_of,
)
from tensorlens.records.names import readable_name
from tensorlens.records.references import ReferencePath
from tensorlens.render.blocks import (
    Block,
    Chain,
    Fact,
    Heading,
    Item,
    KeyValues,
    Levels,
    Named,
    Note,
    Rows,
    Section,
    labelled,
)
from tensorlens.render.figures import NOT_AVAILABLE, counted, counted_about, size
from tensorlens.render.shown import View
from tensorlens.render.source import printable

_ARROW = "-> "
_NOT_SEEN = "nothing that can be seen from Python"
_MAX_BELOW = 8
"""Lines below a leak that are shown, those with the most bytes."""
_UNKNOWN = "unknown: in use at the end, made once, or no tensor that is known to stay"
_FURTHER = "... "
"""Beginning of a path whose root is not known."""

_EXAMPLE = ("dtype", "nbytes", "storage_nbytes", "grad_fn", "age", "below", "below_tensors")
_FRACTIONS = ("tensors_per_step", "bytes_per_step")
_COLUMNS = (
    *("kind", "certainty", "device", "role", *_FRACTIONS, "born", "source", "path", "other_paths"),
    *("reason", "advice", "example", "shape", *_EXAMPLE),
)
"""Columns from ``example`` on are the example's, with ``below`` in bytes and ``age`` in steps.
Several paths are joined by `` | ``."""
_INTEGERS = ("nbytes", "storage_nbytes", "age", "below", "below_tensors")

TITLE = "memory leaks"


def blocks(report: LeakReport, view: View) -> Sequence[Block]:
    """Return the verdict, an item for each leak, and other growth."""
    facts = (
        Fact("watched", _watched(report)),
        *labelled("allocated", _levels(report)),
        *labelled("growth", _balances(report)),
    )
    notes = (Note(f"note: {note}") for note in report.notes)
    heading = Heading(f"{report.verdict[:1].upper()}{report.verdict[1:]}", report.provenance)
    found: list[Block] = [Section((heading, KeyValues(facts), *notes))]
    count = len(report.leaks)
    found += [_item(number, count, leak) for number, leak in enumerate(report.leaks, 1)]
    if report.others:
        others = tuple(fact for other in report.others for fact in _other(other))
        found.append(Section((KeyValues(others),), "Other growth"))
    return found


def rows(report: LeakReport) -> Rows:
    """Return one row per leak."""
    texts = tuple(name for name in _COLUMNS if name not in (*_INTEGERS, *_FRACTIONS))
    return Rows(_COLUMNS, map(_row, report.leaks), texts, _FRACTIONS)


def _watched(report: LeakReport) -> str:
    """Return ``8 steps: 2 of warm-up, 5 judged; the last may still be in use``."""
    text = counted(report.warmup + report.steps, "step")
    judged = max((each.steps for each in report.balance.values()), default=0)
    parts = [f"{report.warmup:,} of warm-up"] if report.warmup else []
    if judged:
        parts.append(f"{judged:,} judged")
    late = report.steps - judged
    last = "the last" if late == 1 else f"the last {late:,}"
    rest = f"; {last} may still be in use" if judged and late else ""
    return f"{text}: {', '.join(parts)}{rest}" if parts else text


def _levels(report: LeakReport) -> Iterator[Levels]:
    """Yield the allocated bytes of each device that has any."""
    for device, series in report.allocated.items():
        known = tuple(each for each in series if each >= 0)
        if known and any(known):
            first, last = size(known[0]), size(known[-1])
            if size(min(known)) == size(max(known)):
                # the text rounds this difference away, so the bars must not show it
                known = (known[0],) * len(known)
            text = last if first == last else f"{first} to {last}"
            yield Levels(device, known, text)


def _balances(report: LeakReport) -> Iterator[Named]:
    """Yield the balance a step of each device whose memory grew."""
    for device, each in report.balance.items():
        if each.growth > 0 or any((each.leaks, each.garbage, each.filling)):
            yield Named(device, _balance(each))


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
    if not any((balance.leaks, balance.garbage, balance.filling)):
        # a rate would read as a leak, but it may be a state made once, or memory in use at the end
        return f"{_signed(balance.growth)} over {counted(steps, 'step')}, none in tensors that stay"
    known = [f"{name} {_signed(value / steps)}" for name, value in parts.items() if value]
    growth = f"{_signed(balance.growth / steps)} a step"
    why = f" ({_UNKNOWN})" if balance.unknown else ""
    return f"{growth}: {', '.join(known)}{why}" if known else growth


def _signed(value: float) -> str:
    amount = size(round(abs(value)))
    return f"-{amount}" if value < 0 else f"+{amount}"


def _rate(tensors: float, nbytes: float) -> str:
    """Return ``2 tensors, 8.00 KiB a step``; no tensors mean one that gets larger."""
    amount = f"{size(round(nbytes))} a step"
    if not tensors:
        return f"one tensor that grows, {amount}"
    return f"{counted_about(tensors)}, {amount}"


def _item(number: int, count: int, leak: Leak) -> Item:
    facts = [Fact("made at", Chain((place_of(leak.born),)), leak.source)]
    facts.append(Fact("held by", Chain(_held_by(leak))))
    facts += [Fact("and by", Chain(_references(path))) for path in leak.paths[1:]]
    facts += _graph(leak)
    facts += _below(leak.below)
    if leak.example is not None:
        facts.append(Fact("example", Chain(_example(leak.example, leak))))
    facts.append(Fact(leak.certainty, leak.reason))
    if leak.advice:
        facts.append(Fact("advice", leak.advice))
    kind = "" if leak.kind == LeakKind.LEAK else f": {leak.kind}"
    rate = _rate(leak.tensors_per_step, leak.bytes_per_step)
    return Item(number, count, rate + kind, tuple(facts))


def _below(lines: Sequence[BelowLine]) -> Iterator[Fact]:
    for number, each in enumerate(lines[:_MAX_BELOW]):
        label = "" if number else "below it"
        amount = f"{_rate(each.tensors_per_step, each.bytes_per_step)}, {each.role}"
        yield Fact(label, f"{amount}, made at {place_of(each.born)}", each.source)
    rest = lines[_MAX_BELOW:]
    if rest:
        nbytes = size(round(sum(each.bytes_per_step for each in rest)))
        yield Fact("", f"{nbytes} a step, made at {counted(len(rest), 'more line')}")


def _graph(leak: Leak) -> Iterator[Fact]:
    nodes = round(leak.nodes_per_step)
    if nodes:
        saved = "their saved tensors are listed below it" if leak.below else "they save no tensors"
        text = f"{counted(nodes, 'autograd node')} a step stay with it, in host memory"
        yield Fact("graph", f"{text}; {saved}")


def _held_by(leak: Leak) -> tuple[str, ...]:
    if leak.paths:
        return _references(leak.paths[0])
    return _with_arrows(leak.path.split(f" {_ARROW}")) if leak.path else (_NOT_SEEN,)


def _references(path: ReferencePath) -> tuple[str, ...]:
    found = _with_arrows([reference.text for reference in path.references])
    return (_FURTHER, _ARROW + found[0], *found[1:]) if path.is_cut and found else found


def _with_arrows(texts: Sequence[str]) -> tuple[str, ...]:
    return (*texts[:1], *(_ARROW + text for text in texts[1:]))


def _example(example: Example, leak: Leak) -> tuple[str, ...]:
    name = printable(readable_name(example.name)) or "a tensor without a name"
    shape = f"({', '.join(map(str, example.shape))}{',' if len(example.shape) == 1 else ''})"
    facts = [f"{example.dtype} {shape}" if example.dtype else NOT_AVAILABLE, size(example.nbytes)]
    if example.nbytes < example.storage_nbytes:
        facts[-1] += f" of a storage of {size(example.storage_nbytes)}"
    if example.grad_fn:
        facts.append(f"grad_fn {example.grad_fn}")
    facts.append(f"{leak.role} on {leak.device}")
    facts.append(f"made {_ago(example.age)}")
    if example.below or example.below_tensors:
        facts.append(f"below it {counted(example.below_tensors)}, {size(example.below)}")
    return (f"{name}:", *(f"{fact}," for fact in facts[:-1]), facts[-1])


def _ago(steps: int) -> str:
    if steps < 1:
        return "in the last step"
    return "1 step ago" if steps == 1 else f"{steps:,} steps ago"


def _other(other: Growth) -> Iterator[Fact]:
    yield Fact(other.kind, other.text)
    if other.path and other.path not in other.text:
        yield Fact("", Chain(_with_arrows(other.path.split(f" {_ARROW}"))))


def _row(leak: Leak) -> tuple[str | int | float | None, ...]:
    example = leak.example
    return (
        str(leak.kind),
        str(leak.certainty),
        leak.device,
        leak.role,
        leak.tensors_per_step,
        leak.bytes_per_step,
        None if leak.born is None else str(leak.born),
        leak.source or None,
        leak.path or None,
        " | ".join(map(str, leak.paths[1:])) or None,
        leak.reason,
        leak.advice,
        None if example is None else example.name,
        None if example is None else str(example.shape),
        *(getattr(example, name, None) for name in _EXAMPLE),
    )
