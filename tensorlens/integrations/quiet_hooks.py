"""Hooks of a trainer's callback that never fail."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from tensorlens.guards import warn
from tensorlens.signals import is_from_a_handler

_Method = TypeVar("_Method", bound=Callable[..., None])


def quiet(method: _Method) -> _Method:
    """Keep what fails in a hook from the program: one line says so, and no more is measured.

    Whose hook it is has a flag ``is_on`` and a method ``_leave`` that lets go of all that is on.
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
