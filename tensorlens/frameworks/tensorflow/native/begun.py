"""What the native part has begun, and which an interrupt must not leave on."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any


class Begun:
    """It ends once, at the latest when nobody refers to it any more, however it came to that.

    Args:
        begin: is called with ``given`` and the address of an int64, 0, which it writes.
        end: is called with the same address, and sets it to 0; what is 0 there has ended.
    """

    _where = 0
    """The address; 0 where it has not come to that."""

    def __init__(self, begin: Callable[..., Any], end: Callable[[int], Any], *given: Any) -> None:
        self._end = end
        # the native part writes it, so that no exception can come between
        self._slot = ctypes.c_int64()
        self._where = ctypes.addressof(self._slot)
        begin(*given, self._where)

    def end(self) -> Any:
        """End it; returns what ``end`` gives."""
        return self._end(self._where)

    def __del__(self) -> None:
        if self._where:
            self._end(self._where)
