"""Leak reports as rows: one per leak, sizes in bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorlens.records.leaks import Example, LeakReport

Value = str | int | float | None

_EXAMPLE = ("shape", "dtype", "nbytes", "storage_nbytes", "grad_fn", "age", "below")
NUMBERS = ("tensors_per_step", "bytes_per_step")
"""The columns that are numbers with a fraction."""
COLUMNS = (
    *("kind", "certainty", "device", "role", *NUMBERS, "born", "source", "path", "other_paths"),
    *("reason", "advice", "example", *_EXAMPLE, "below_tensors"),
)
"""The columns: of ``example`` on they are the example's, whose ``below`` is bytes and whose
``age`` is steps; several paths are joined by `` | ``."""

_WHOLE = ("nbytes", "storage_nbytes", "age", "below", "below_tensors")
TEXT = tuple(name for name in COLUMNS if name not in (*_WHOLE, *NUMBERS))
"""The columns of :data:`COLUMNS` that are text."""


def rows(report: LeakReport) -> Iterator[tuple[Value, ...]]:
    """Yield the values of :data:`COLUMNS` for every leak."""
    for leak in report.leaks:
        yield (
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
            *_example(leak.example),
        )


def _example(example: Example | None) -> tuple[Value, ...]:
    if example is None:
        return (None,) * (len(_EXAMPLE) + 2)
    return (
        example.name,
        str(example.shape),
        example.dtype,
        example.nbytes,
        example.storage_nbytes,
        example.grad_fn,
        example.age,
        example.below,
        example.below_tensors,
    )
