"""``explain_oom()``: failed allocations explained wherever in the program they come up."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from tensorlens.frameworks.registry import when_one_arrives
from tensorlens.guards import guarded
from tensorlens.interpreter import reentrant_lock
from tensorlens.recording.oom import reserve
from tensorlens.recording.oom.annotation import annotate_unhandled
from tensorlens.tensors.reporter import MemReporter

_lock = reentrant_lock()
_installed: _Hooks | None = None


def explain_oom() -> Callable[[], None]:
    """Explain failed allocations anywhere in the program, until what is returned is called.

    An error that nobody handles is printed as ever; below its traceback it says what was asked
    for, by which line, what was resident, largest first, and what one could free. That is so in
    the main thread, in others and in IPython. Calls nest, a framework may be imported later,
    and other people's hooks go on as they did.

    From then on the line that allocates a tensor is noted, and 64 MiB of addresses (no memory)
    are kept back to explain with.
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
        """Explain no more, where nobody else asked for it."""
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
    """The hooks for errors that nobody handles, of the main thread, of others, and IPython's."""

    def __init__(self) -> None:
        self.users = 0
        self._on = True
        self._undo: list[Callable[[], None]] = []
        self._watcher: MemReporter | None = None
        self._main = sys.excepthook
        self._threads = threading.excepthook
        self._shell: Any = None

    def install(self) -> None:
        """Take the place of the hooks there are; they are called after ours."""
        self._undo.append(put(sys, "excepthook", self._in_main))
        self._undo.append(put(threading, "excepthook", self._in_thread))
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if shell is not None:
            self._shell = shell.showtraceback
            self._undo.append(put(shell, "showtraceback", self._in_shell))
        self._undo += when_one_arrives(self._watch)
        reserve.reserve()
        self._undo.append(reserve.release)

    def remove(self) -> None:
        """Put back what was there; where another's hook calls ours, it only passes on."""
        self._on = False
        self._watcher = None
        for undo in reversed(self._undo):
            undo()

    def _watch(self) -> None:
        if self._on:
            # in the program's own import; while it lives, the lines that allocate are noted
            with guarded("the lines that allocate are not known"):
                self._watcher = MemReporter()

    def _in_main(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> Any:
        self._look_at(error)
        return self._main(kind, error, trace)

    def _in_thread(self, arguments: Any) -> Any:
        self._look_at(arguments.exc_value)
        return self._threads(arguments)

    def _in_shell(self, *arguments: Any, **options: Any) -> Any:
        given = (*arguments, options.get("exc_tuple"))[0]
        self._look_at((given or sys.exc_info())[1])
        return self._shell(*arguments, **options)

    def _look_at(self, error: BaseException | None) -> None:
        if self._on and error is not None:
            try:
                annotate_unhandled(error)
            except BaseException:
                # a Ctrl-C ends the explanation; the error is still to be shown
                return


def put(owner: Any, name: str, ours: Any) -> Callable[[], None]:
    """Put a hook in its place; return what undoes that, unless someone took the place since."""
    before = vars(owner).get(name)
    setattr(owner, name, ours)

    def undo() -> None:
        if vars(owner).get(name) == ours:
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    return undo
