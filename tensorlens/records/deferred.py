"""A log whose columns are made when the first question comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorlens.interpreter import reentrant_lock
from tensorlens.records.events import EventLog

_lock = reentrant_lock()


class DeferredLog(EventLog):
    """Becomes the log that ``make`` gives as soon as anything of it is asked for."""

    def __init__(self, make: Callable[[], EventLog]) -> None:
        self._make = make

    def __getattr__(self, name: str) -> Any:
        """Make the log: only then it has attributes."""
        # copy and pickle look for methods that there may not be
        if name.startswith("__"):
            raise AttributeError(name)
        with _lock:
            if type(self) is DeferredLog:
                made = self._make()
                self.__dict__.clear()
                self.__dict__.update(made.__dict__)
                self.__class__ = EventLog  # type: ignore[assignment]
        return getattr(self, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Be written as the log that it stands for."""
        len(self)
        return self.__reduce_ex__(protocol)
