"""Hooks of trainers' callbacks that never fail, and a watch for exceptions of trainers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from tensorlens.guards import guarded, is_from_a_handler, warn

_Method = TypeVar("_Method", bound=Callable[..., None])


def fail_safe(method: _Method) -> _Method:
    """Let no exception of ours leave a hook: print it in one line, and stop measuring.

    Exceptions of the program's signal handlers pass.
    The hook's object has a flag ``is_on`` and a method ``_leave()`` that releases everything.
    """

    @functools.wraps(method)
    def run(self: Any, *arguments: Any, **options: Any) -> None:
        if not self.is_on:
            return
        try:
            method(self, *arguments, **options)
        except Exception as failure:
            if is_from_a_handler(failure):
                raise
            self.is_on = False
            warn("MemoryCallback measures no more", failure)
            with suppress(Exception):
                self._leave()

    return run  # type: ignore[return-value]


def watch_exceptions(
    kind: type,
    methods: Sequence[str],
    failed: Callable[[Any, BaseException], None],
    begins: Callable[[Any], None] = lambda trainer: None,
) -> None:
    """Watch the outermost call of some methods of trainers.

    A failure of ``begins`` or ``failed`` is printed in one line.

    Args:
        kind: the trainers' class; an override in a subclass is watched while it calls the original.
        methods: names of the methods; missing ones are ignored.
        failed: called with the trainer and the exception that leaves an outermost call.
        begins: called with the trainer before each outermost call.
    """
    # by address: a trainer may have equality and a hash of its own, or none
    inside: set[int] = set()

    def watched(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def run(trainer: Any, *arguments: Any, **options: Any) -> Any:
            if id(trainer) in inside:
                return method(trainer, *arguments, **options)
            inside.add(id(trainer))
            try:
                with guarded("MemoryCallback may reach no logger"):
                    begins(trainer)
                return method(trainer, *arguments, **options)
            except BaseException as error:
                with guarded("an exception of the trainer is not explained"):
                    failed(trainer, error)
                raise
            finally:
                inside.discard(id(trainer))

        return run

    for name in methods:
        if hasattr(kind, name):
            setattr(kind, name, watched(getattr(kind, name)))
