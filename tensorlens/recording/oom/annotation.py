"""Explains a failed allocation: the request, what was resident, what could be freed.

The explanation is added to the exception as a note (PEP 678), so that it appears below the
traceback of an error that nobody handles, and nowhere when the program handles it.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace

from tensorlens.errors import error_chain
from tensorlens.frameworks.advice import Words
from tensorlens.frameworks.registry import adapters, first_answer
from tensorlens.guards import is_from_a_handler, reason
from tensorlens.recording.oom import reserve
from tensorlens.recording.oom.failure import OutOfMemory, located
from tensorlens.recording.oom.region import is_of_a_kind
from tensorlens.recording.oom.remedies import remarks, remedies
from tensorlens.recording.recordings import Recording
from tensorlens.records.failures import Request
from tensorlens.records.names import Names
from tensorlens.records.tensors import TensorTable
from tensorlens.tensors.reporter import MemReporter
from tensorlens.tensors.snapshot import Snapshot

_BEGINNING = "tensorlens: out of memory"
_MOST = 3
_PART = 100
"""After ``_MOST`` explanations one is due when so many times as long as the last took has passed:
a program that catches the error and tries again is not to be slowed."""
_NOTHING = Snapshot(TensorTable(), {})


class _State(threading.local):
    busy = False


class _Budget:
    """How often an error is explained that the program may yet handle."""

    def __init__(self) -> None:
        self.given = 0
        self._took = 0.0
        self._ended = 0.0

    def allows(self) -> bool:
        """Tell whether one more is due."""
        return self.given < _MOST or time.monotonic() - self._ended > _PART * self._took

    def spent(self, begun: float) -> None:
        """Note that one was made, begun at that time."""
        self.given += 1
        self._ended = time.monotonic()
        self._took = self._ended - begun


_state = _State()
_budget = _Budget()


def annotate(error: BaseException, recording: Recording | None = None) -> None:
    """Add an explanation to a failed allocation on its way out of a region.

    It is the error itself or what it was raised from, and is explained once. Does nothing for
    other errors, and nothing where there were many lately. Raises what handlers of signals raise.

    Args:
        error: what leaves the region.
        recording: what recorded the region, ended or not.
    """
    if not isinstance(error, KeyboardInterrupt | SystemExit):
        _explain_all(error, recording, contexts=False)


def annotate_unhandled(error: BaseException) -> None:
    """Add an explanation to each failed allocation that the traceback of ``error`` will show."""
    if not isinstance(error, KeyboardInterrupt | SystemExit):
        with reserve.released():
            _explain_all(error, None, contexts=True)


def explain(
    error: BaseException, recording: Recording | None = None, *, handled: bool = False
) -> OutOfMemory | None:
    """Return what is known of a failed allocation; None if ``error`` is none.

    Call it while the error is being handled: what is resident is read now. ``handled`` tells that
    the program did handle it, and may have freed what was resident.
    """
    request = _request(error)
    if request is None:
        return None
    request = located(request, error, recording)
    snapshot = plain_names(MemReporter().snapshot())
    graphs = [graph for each in adapters() for graph in each.graphs_kept()]
    found = remedies(request, snapshot, graphs, _words(error))
    return OutOfMemory(request, snapshot, found, remarks(request, snapshot), handled)


def _explain_all(error: BaseException, recording: Recording | None, *, contexts: bool) -> None:
    """Explain an error and those it was raised from; what is resident now is told once."""
    told = False
    for each in error_chain(error, contexts="shown" if contexts else "none"):
        # one on its way to nobody is explained always
        if contexts or _budget.allows():
            told |= _explain(each, recording, handled=each is not error, briefly=told)


def _explain(
    error: BaseException, recording: Recording | None, *, handled: bool, briefly: bool
) -> bool:
    """Add a note where one is due, ``briefly`` of the request alone; tell whether there is one."""
    if not is_of_a_kind(error) or _state.busy:
        return False
    if _has_note(error):
        return True
    _state.busy = True
    begun = time.monotonic()
    try:
        request = _request(error)
        if request is not None:
            error.add_note("\n" + _text(error, request, recording, handled, briefly))
            _budget.spent(begun)
            return True
    except Exception as failure:
        if is_from_a_handler(failure):
            raise
    finally:
        _state.busy = False
    return False


def _text(
    error: BaseException,
    request: Request,
    recording: Recording | None,
    handled: bool,
    briefly: bool,
) -> str:
    try:
        if briefly:
            return _rendered(OutOfMemory(located(request, error, recording), _NOTHING))
        found = explain(error, recording, handled=handled)
        return _rendered(found) if found else ""
    except MemoryError:
        why = "too little is left to look at what is resident"
    except Exception as failure:
        if is_from_a_handler(failure):
            raise
        why = f"could not look at what is resident: {reason(failure)}"
    line = located(request, error, None).line or "a line that is not known"
    about = "" if request.exact else "about "
    nbytes = "" if request.nbytes is None else f"{about}{request.nbytes:,} B "
    return f"{_BEGINNING}: {why}; {nbytes}asked for by {line}"


def _rendered(failure: OutOfMemory) -> str:
    from tensorlens.render.text import TextRenderer

    # a traceback goes to standard error
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    return TextRenderer(encoding=encoding).render(failure).rstrip()


def _request(error: BaseException) -> Request | None:
    return first_answer(lambda each: each.failed_request(error))


def _words(error: BaseException) -> Words:
    """Return how those write whose framework failed."""
    return next(each.words for each in adapters() if each.failed_request(error) is not None)


def _has_note(error: BaseException) -> bool:
    notes = getattr(error, "__notes__", ())
    return isinstance(notes, list) and any(_BEGINNING in str(note)[:99] for note in notes)


REMARK = " (kept by a traceback)"


def plain_names(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without the remark; its table of tensors is changed in place."""
    table = snapshot.tensors
    names = table.names
    table.names = Names(names.parents, names.kinds, names.values, _plain(names.texts))
    table.holders = _plain(table.holders)
    table.more_names = {row: tuple(_plain(all_)) for row, all_ in table.more_names.items()}
    return replace(snapshot, tensors=table)


def _plain(texts: list[str] | tuple[str, ...]) -> list[str]:
    return [text.replace(REMARK, "") for text in texts]
