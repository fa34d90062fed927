"""Names of what the frames of a traceback hold, while the error itself is on its way.

A census says of the variables of such frames that a traceback keeps them. That says something of
an earlier error; of the one that is on its way it goes without saying.
"""

from __future__ import annotations

import traceback
from dataclasses import replace

from tensorlens.records.names import Names
from tensorlens.records.tensors import TensorTable
from tensorlens.tensors.snapshot import Snapshot

REMARK = " (kept by a traceback)"


def plain_names(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without the remark; its table of tensors is changed in place."""
    table = snapshot.tensors
    names = table.names
    table.names = Names(names.parents, names.kinds, names.values, _plain(names.texts))
    table.holders = _plain(table.holders)
    table.more_names = {row: tuple(_plain(all_)) for row, all_ in table.more_names.items()}
    return replace(snapshot, tensors=table)


def kept_before(table: TensorTable, error: BaseException) -> frozenset[int]:
    """Return the rows of tensors that the tracebacks of earlier errors keep.

    These are the errors in whose ``except`` block ``error`` came up. A function that is in both
    tracebacks is taken for the later one's.
    """
    functions = _functions(error)
    earlier: set[str] = set()
    context = error.__context__
    while context is not None and len(earlier) < 1000:
        earlier |= _functions(context) - functions
        context = context.__context__
    if not earlier:
        return frozenset()
    names = table.names
    return frozenset(
        row for row in table.counted() if _holder(names[names.root(table.name[row])]) in earlier
    )


def _functions(error: BaseException) -> set[str]:
    codes = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    return {f"{code.co_qualname.replace('<locals>.', '')}()" for code in codes}


def _holder(text: str) -> str | None:
    return text.partition(": ")[0] if REMARK in text else None


def _plain(texts: list[str] | tuple[str, ...]) -> list[str]:
    return [text.replace(REMARK, "") for text in texts]
