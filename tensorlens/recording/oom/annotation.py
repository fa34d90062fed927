"""Explains a failed allocation: the request, what was resident, what could be freed.

The explanation is added to the exception as a note (PEP 678), so that it appears below the
traceback of an error that nobody handles, and nowhere when the program handles it. With
``explain_oom()`` that is so wherever in the program the error comes up.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tensorlens.errors import error_chain
from tensorlens.frameworks.base import Request
from tensorlens.frameworks.registry import adapters, first_answer, when_any_imported
from tensorlens.guards import guarded, is_from_a_handler, reason
from tensorlens.heap.reference_names import KEPT_BY_TRACEBACK
from tensorlens.interpreter import reentrant_lock
from tensorlens.recording import oom
from tensorlens.recording.oom import is_of_a_kind
from tensorlens.recording.oom.failure import OutOfMemory, located, remarks, remedies
from tensorlens.recording.recordings import Recording
from tensorlens.records.names import Names
from tensorlens.records.tensors import TensorTable
from tensorlens.tensors.reporter import MemReporter
from tensorlens.tensors.snapshot import Snapshot

_BEGINNING = "tensorlens: out of memory"
_MAX_EXPLANATIONS = 3
"""Explanations of errors that the program may handle; more would slow it."""
_NOTHING = Snapshot(TensorTable(), {})


class _State(threading.local):
    busy = False


_state = _State()
_explanations = 0


def annotate(error: BaseException, recording: Recording | None = None) -> None:
    """Add an explanation to a failed allocation on its way out of a region.

    That may be ``error``, one of its causes, or a member of a group; each is explained once. Other
    errors get no note, and none is added after three. Raises what handlers of signals raise.

    Args:
        error: the exception that leaves the region.
        recording: recording of the region, ended or not.
    """
    _explain_all(error, recording, contexts=False)


def annotate_unhandled(error: BaseException) -> None:
    """Add an explanation to each failed allocation that the traceback of ``error`` will show."""
    with oom.released():
        _explain_all(error, None, contexts=True)


def explain(
    error: BaseException, recording: Recording | None = None, *, handled: bool = False
) -> OutOfMemory | None:
    """Return a report on a failed allocation; None if ``error`` is of another kind.

    Call it while the error is being handled, as resident memory is read now. ``handled`` says that
    the program handled the error, and may have freed memory since.
    """
    request = _request(error)
    return None if request is None else _report(request, error, recording, handled)


def _report(
    request: Request, error: BaseException, recording: Recording | None, handled: bool
) -> OutOfMemory:
    request = located(request, error, recording)
    snapshot = plain_names(MemReporter().snapshot())
    graphs = [graph for each in adapters() for graph in each.graphs_kept()]
    # the terms of the framework that failed
    words = next(each.words for each in adapters() if each.failed_request(error) is not None)
    advice = remedies(request, snapshot, graphs, words)
    return OutOfMemory(request, snapshot, advice, remarks(request, snapshot), handled)


def _explain_all(error: BaseException, recording: Recording | None, *, contexts: bool) -> None:
    """Explain an error and those it was raised from; resident memory is described once."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return
    told = False
    for each in error_chain(error, contexts="shown" if contexts else "none"):
        # an unhandled error is always explained
        if contexts or _explanations < _MAX_EXPLANATIONS:
            told |= _explain(each, recording, handled=each is not error, briefly=told)


def _explain(
    error: BaseException, recording: Recording | None, *, handled: bool, briefly: bool
) -> bool:
    """Add a note if one is due, ``briefly`` on the request alone; return whether it has one."""
    global _explanations
    if not is_of_a_kind(error) or _state.busy:
        return False
    if _has_note(error):
        return True
    _state.busy = True
    try:
        request = _request(error)
        if request is not None:
            error.add_note("\n" + _text(error, request, recording, handled, briefly))
            _explanations += 1
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
        return _rendered(_report(request, error, recording, handled))
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


def _has_note(error: BaseException) -> bool:
    notes = getattr(error, "__notes__", ())
    return isinstance(notes, list) and any(_BEGINNING in str(note)[:99] for note in notes)


def plain_names(snapshot: Snapshot) -> Snapshot:
    """Remove the remark on tracebacks from names, in place, and return the snapshot."""
    table = snapshot.tensors
    names = table.names
    table.names = Names(names.parents, names.kinds, names.values, _plain(names.texts))
    table.holders = _plain(table.holders)
    table.more_names = {row: tuple(_plain(all_)) for row, all_ in table.more_names.items()}
    return replace(snapshot, tensors=table)


def _plain(texts: list[str] | tuple[str, ...]) -> list[str]:
    return [text.replace(KEPT_BY_TRACEBACK, "") for text in texts]


_lock = reentrant_lock()
_installed: _Hooks | None = None


def explain_oom() -> Callable[[], None]:
    """Explain failed allocations anywhere in the program; return a function that ends it.

    Below the traceback of an unhandled error stands the request with its line, the resident memory,
    largest first, and what could be freed; in any thread and in IPython. Calls nest, frameworks may
    be imported later, and hooks of others go on.

    From then on the lines that allocate tensors are noted, and 64 MiB of addresses (no memory) are
    reserved.
    """
    global _installed
    with _lock:
        if _installed is None:
            _installed = _Hooks()
            _installed.install()
        hooks = _installed
        hooks.users += 1
    done = threading.Event()

    def stop() -> None:
        """End it, unless another call still wants it."""
        global _installed
        with _lock:
            if done.is_set():
                return
            done.set()
            hooks.users -= 1
            if not hooks.users and _installed is hooks:
                _installed = None
                hooks.remove()

    return stop


class _Hooks:
    """Hooks for unhandled errors of the main thread, of other threads and of IPython."""

    def __init__(self) -> None:
        self.users = 0
        self._on = True
        self._undo: list[Callable[[], None]] = []
        self._watcher: MemReporter | None = None

    def install(self) -> None:
        """Install the hooks; the former ones are called after ours."""
        self._hook(sys, "excepthook", lambda kind, error, trace: error)
        self._hook(threading, "excepthook", lambda arguments: arguments.exc_value)
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if shell is not None:
            self._hook(shell, "showtraceback", _shown_in_shell)
        self._undo += when_any_imported(self._watch)
        oom.reserve()
        self._undo.append(oom.release)

    def remove(self) -> None:
        """Restore the former hooks; a hook of ours that another one calls only passes on."""
        self._on = False
        self._watcher = None
        for undo in reversed(self._undo):
            undo()

    def _watch(self) -> None:
        if self._on:
            # called in the program's own import; while it lives, allocating lines are noted
            with guarded("the lines that allocate are not known"):
                self._watcher = MemReporter()

    def _hook(self, owner: Any, name: str, error: Callable[..., BaseException | None]) -> None:
        """Look at the error that a hook is called for, before the hook; ``error`` finds it."""
        before = getattr(owner, name)

        def ours(*arguments: Any, **options: Any) -> Any:
            self._look_at(error(*arguments, **options))
            return before(*arguments, **options)

        self._undo.append(put(owner, name, ours))

    def _look_at(self, error: BaseException | None) -> None:
        if self._on and error is not None:
            try:
                annotate_unhandled(error)
            except BaseException:
                # a Ctrl-C ends the explanation; the error is still to be shown
                return


def _shown_in_shell(*arguments: Any, **options: Any) -> BaseException | None:
    given = (*arguments, options.get("exc_tuple"))[0]
    return (given or sys.exc_info())[1]


def put(owner: Any, name: str, ours: Any) -> Callable[[], None]:
    """Install a hook; return a function that removes it, unless another has replaced it."""
    before = vars(owner).get(name)
    setattr(owner, name, ours)

    def undo() -> None:
        if vars(owner).get(name) == ours:
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    return undo
