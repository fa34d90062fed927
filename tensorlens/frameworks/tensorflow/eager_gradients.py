"""Traces gradients of eager code back to forward operations, while someone records.

A tape calls ``_gradient_function`` of tensorflow/python/eager/backprop.py for each operation that
it recorded, last one first; TensorFlow lets that function be registered anew. What is noted of a
call is when it ran, the operation's name, and where what it made lies or how large it is.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import backprop
from tensorflow.python.framework.ops import EagerTensor

from tensorlens.frameworks.host.recorder import Amendment
from tensorlens.frameworks.tensorflow.census.tensor_reader import FactKind, read_tensor
from tensorlens.frameworks.tensorflow.hooks import Shared, harmless
from tensorlens.records.logs.events import ALLOC, FREE, EventLog

_MOST = 1_000_000
"""Calls of one recording that are kept; the oldest go first."""
_MKL = ("_MklNative", "_Mkl")


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    thread: int
    """The native part's number."""
    begin: int
    end: int
    """Monotonic nanoseconds."""
    op: str
    address: int
    """Of what the operation made, 0 where the tape does not keep it."""
    nbytes: int
    """Of its gradient, which is as large; -1 where there are several or none."""


class EagerGradients:
    """The gradient functions that run from :meth:`start` on.

    Args:
        thread: gives the native part's number of the calling thread.
    """

    def __init__(self, thread: Callable[[], int]) -> None:
        self._thread = thread
        self._calls: deque[_Call] = deque(maxlen=_MOST)

    def start(self) -> Callable[[], None]:
        """Note calls from now on; return what ends that."""
        return follow_gradients(self._note)

    def _note(self, begin: int, arguments: tuple[Any, ...]) -> None:
        op, _, _, _, outputs, gradients, *_ = arguments
        addresses = (read_tensor(each).address for each in outputs or ())
        address = next(filter(None, addresses), 0)
        end = time.monotonic_ns()
        call = _Call(self._thread(), begin, end, str(op), address, _nbytes(gradients))
        self._calls.append(call)

    def amend(self, log: EventLog, amendment: Amendment) -> None:
        """Say of the events of backward which operation they go back to, and of that its phase."""
        if not self._calls:
            return
        calls = sorted(self._calls, key=lambda call: call.begin)
        inside = _calls_by_row(log, calls, amendment)
        rows = _forward_rows(log, calls, inside, amendment.started)
        made = set(rows.values())
        context = array("i", log.context)
        for row, number in enumerate(log.context):
            if number < 0:
                continue
            known, call = log.contexts[number], inside.get(row)
            if call is not None and known.node is None:
                stack = log.stack[rows[call]] if call in rows else -1
                changed = replace(known, node=call.op, forward=stack, phase="backward")
                context[row] = log.context_number(changed)
            elif row in made and known.phase is None:
                context[row] = log.context_number(replace(known, phase="forward"))
        log.context = context


def _calls_by_row(log: EventLog, calls: Sequence[_Call], amendment: Amendment) -> dict[int, _Call]:
    """Return the call that ran at each row of which one did, on the same thread."""
    by_thread: dict[int, list[_Call]] = {}
    for call in calls:
        by_thread.setdefault(amendment.thread(call.thread), []).append(call)
    found: dict[int, _Call] = {}
    for row, number in enumerate(log.context):
        ran = by_thread.get(log.contexts[number].thread, []) if number >= 0 else []
        moment = log.time[row] + amendment.started
        place = bisect_right(ran, moment, key=attrgetter("begin")) - 1
        if place >= 0 and moment <= ran[place].end:
            found[row] = ran[place]
    return found


def _forward_rows(
    log: EventLog, calls: Iterable[_Call], inside: Mapping[int, _Call], started: int
) -> dict[_Call, int]:
    """Return the row of the forward operation's result of each call that it is known of."""
    by_address: dict[int, list[int]] = defaultdict(list)
    # a gradient of gradients goes back to what gradient functions computed
    tables: tuple[dict[tuple[str, int], list[int]], ...] = defaultdict(list), defaultdict(list)
    for row, kind in enumerate(log.kind):
        if kind >= FREE or log.stack[row] < 0:
            continue
        by_address[log.address[row]].append(row)
        op = log.contexts[log.context[row]].op if log.context[row] >= 0 else None
        if kind == ALLOC and op is not None:
            tables[row in inside][_plain(op), log.size[row]].append(row)
    found: dict[_Call, int] = {}
    for call in calls:
        key = call.op, call.nbytes
        for rows in (by_address[call.address], tables[False][key], tables[True][key]):
            moment = call.begin - started
            early = (at for at in range(len(rows) - 1, -1, -1) if log.time[rows[at]] <= moment)
            place = next(early, -1)
            if place >= 0:
                found[call] = rows[place]
                if rows is not by_address[call.address]:
                    del rows[place]
                break
    return found


def _plain(op: str) -> str:
    for prefix in _MKL:
        if op.startswith(prefix):
            return op[len(prefix) :]
    return op


def _nbytes(gradients: Sequence[Any]) -> int:
    found = [each for each in gradients or () if type(each) is EagerTensor]
    fact = read_tensor(found[0]) if len(found) == 1 else None
    return -1 if fact is None or fact.kind == FactKind.UNREAD else fact.nbytes


Note = Callable[[int, tuple[Any, ...]], None]
"""Is told when a gradient function was called, and with what."""


def _register() -> Callable[[], None]:
    pywrap_tfe.TFE_Py_RegisterGradientFunction(_gradient_function)
    return lambda: pywrap_tfe.TFE_Py_RegisterGradientFunction(backprop._gradient_function)


_listeners = Shared(_register)


def follow_gradients(note: Note) -> Callable[[], None]:
    """Have gradient functions noted after they ran; return what ends that.

    They are given the operation's name, its attributes, the number of its inputs, the inputs, its
    outputs, and their gradients.
    """
    return _listeners.add(note)


def _gradient_function(*arguments: Any) -> Any:
    begin = time.monotonic_ns()
    result = backprop._gradient_function(*arguments)
    with harmless:
        for (note,) in _listeners.users:
            note(begin, arguments)
    return result
