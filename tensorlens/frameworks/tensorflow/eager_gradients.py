"""Matches gradient functions of eager code to forward operations, while a recording runs.

A tape calls ``_gradient_function`` of tensorflow/python/eager/backprop.py for each operation on it,
the last one first. Each call is noted with its time, the operation's name, and the address or size
of the operation's result.
"""

from __future__ import annotations

import re
import time
from array import array
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from tensorflow.python.framework.ops import EagerTensor

from tensorlens.frameworks.host.recorder import LogParts
from tensorlens.frameworks.tensorflow.census.tensor_reader import FactKind, read_tensor
from tensorlens.frameworks.tensorflow.hooks import follow_gradient_functions
from tensorlens.records.logs.events import ALLOC, FREE, EventLog

_MAX_CALLS = 1_000_000
"""Calls of a recording that are kept, the latest."""
_MKL_PREFIX = re.compile(r"^_Mkl(?:Native)?")


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    thread: int
    """Number of the thread in the native part."""
    begin: int
    end: int
    """Monotonic nanoseconds."""
    op: str
    address: int
    """Address of the operation's result; 0 if the tape does not keep it."""
    nbytes: int
    """Bytes of the result's gradient, and so of the result; -1 unless there is exactly one."""


class EagerGradients:
    """The gradient functions that run during a recording.

    Args:
        thread: returns the native part's number of the calling thread.
    """

    def __init__(self, thread: Callable[[], int]) -> None:
        self._thread = thread
        self._calls: deque[_Call] = deque(maxlen=_MAX_CALLS)

    def start(self) -> Callable[[], None]:
        """Start noting calls; return a function that ends this."""
        return follow_gradient_functions(self._note)

    def _note(self, begin: int, arguments: tuple[Any, ...]) -> None:
        op, _, _, _, outputs, gradients, *_ = arguments
        addresses = (read_tensor(each).address for each in outputs or ())
        address = next(filter(None, addresses), 0)
        end = time.monotonic_ns()
        call = _Call(self._thread(), begin, end, str(op), address, _nbytes(gradients))
        self._calls.append(call)

    def amend(self, log: EventLog, parts: LogParts) -> None:
        """Set the forward operation and the phase of backward events."""
        if not self._calls:
            return
        calls = sorted(self._calls, key=lambda call: call.begin)
        calls_by_row = _calls_by_row(log, calls, parts)
        rows = _forward_rows(log, calls, calls_by_row, parts.started)
        forward_rows = set(rows.values())
        context = array("i", log.context)
        for row, number in enumerate(log.context):
            if number < 0:
                continue
            known, call = log.contexts[number], calls_by_row.get(row)
            if call is not None and known.node is None:
                stack = log.stack[rows[call]] if call in rows else -1
                changed = replace(known, node=call.op, forward=stack, phase="backward")
                context[row] = log.contexts.number(changed)
            elif row in forward_rows and known.phase is None:
                context[row] = log.contexts.number(replace(known, phase="forward"))
        log.context = context


def _calls_by_row(log: EventLog, calls: Sequence[_Call], parts: LogParts) -> dict[int, _Call]:
    """Map each row to the gradient call that was running on its thread at that time."""
    by_thread: dict[int, list[_Call]] = {}
    for call in calls:
        by_thread.setdefault(parts.maker.thread(call.thread), []).append(call)
    calls_by_row: dict[int, _Call] = {}
    for row, number in enumerate(log.context):
        calls_of_thread = by_thread.get(log.contexts[number].thread, []) if number >= 0 else []
        moment = log.time[row] + parts.started
        index = bisect_right(calls_of_thread, moment, key=attrgetter("begin")) - 1
        if index >= 0 and moment <= calls_of_thread[index].end:
            calls_by_row[row] = calls_of_thread[index]
    return calls_by_row


def _forward_rows(
    log: EventLog, calls: Iterable[_Call], calls_by_row: Mapping[int, _Call], started: int
) -> dict[_Call, int]:
    """Map each call to the row of its forward operation's result, if that is known."""
    by_address: dict[int, list[int]] = defaultdict(list)
    # key: whether a gradient function made it (for gradients of gradients), operation, size
    by_size: dict[tuple[bool, str, int], list[int]] = defaultdict(list)
    for row, kind in enumerate(log.kind):
        if kind >= FREE or log.stack[row] < 0:
            continue
        by_address[log.address[row]].append(row)
        op = log.contexts[log.context[row]].op if log.context[row] >= 0 else None
        if kind == ALLOC and op is not None:
            op = _MKL_PREFIX.sub("", op)
            by_size[row in calls_by_row, op, log.size[row]].append(row)
    found: dict[_Call, int] = {}
    for call in calls:
        of_size = (by_size[is_gradient, call.op, call.nbytes] for is_gradient in (False, True))
        for rows in (by_address[call.address], *of_size):
            moment = call.begin - started
            earlier = (at for at in range(len(rows) - 1, -1, -1) if log.time[rows[at]] <= moment)
            index = next(earlier, -1)
            if index >= 0:
                found[call] = rows[index]
                if rows is not by_address[call.address]:
                    del rows[index]
                break
    return found


def _nbytes(gradients: Sequence[Any]) -> int:
    found = [each for each in gradients or () if type(each) is EagerTensor]
    fact = read_tensor(found[0]) if len(found) == 1 else None
    return -1 if fact is None or fact.kind == FactKind.UNREAD else fact.nbytes
