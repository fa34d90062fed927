"""Births: the source lines that allocate, noted by a native part on every thread."""

from __future__ import annotations

import atexit
import ctypes
import sys
import sysconfig
from itertools import chain

from tensorlens.interpreter import reentrant_lock
from tensorlens.native.build import NativeUnavailable, Signatures, declare
from tensorlens.records.logs.stacks import LAYERS, NO_MODELS
from tensorlens.user_code import foreign_prefixes

_REFUSALS = {
    1: "the frames of this Python version are not known",
    2: "the frames of this Python are not laid out as expected",
    3: "this Python does not tell when code objects end",
}
_pointer, _length = ctypes.c_void_p, ctypes.c_int64
_SIGNATURES: Signatures = {
    "tl_birth_line": (_pointer, (ctypes.c_int32, _pointer)),
    "tl_prepare_births": (ctypes.c_int, (_pointer, _length) * 3),
    "tl_switch_births": (None, (ctypes.c_int,)),
}
_UTF_32 = f"utf-32-{sys.byteorder[0]}e"


class AllocSites:
    """Numbered source lines that a native part has seen allocate.

    Args:
        library: a native part that includes ``alloc_sites.hpp``.
    """

    def __init__(self, library: ctypes.PyDLL) -> None:
        self.library = library
        declare(library, _SIGNATURES)
        self._watchers = 0
        self._births_prepared = False
        self._ended = False
        self._lock = reentrant_lock()
        # at its exit the interpreter frees the thread states through which frames are read
        atexit.register(self._end)

    def watch_births(self, on: bool = True) -> None:
        """Note the source line that allocates each block, on every thread, or stop noting it.

        Calls nest: noting stops after as many calls with False as with True. Blocks keep births.

        Raises:
            NativeUnavailable: not possible on this Python.
        """
        with self._lock:
            if on:
                self.prepare_births()
            self._watchers = max(0, self._watchers + (1 if on else -1))
            self.library.tl_switch_births(self._watchers > 0 and not self._ended)

    def prepare_births(self) -> None:
        """Make sure that births can be watched.

        Raises:
            NativeUnavailable: not possible on this Python, or any more.
        """
        if self._ended:
            raise NativeUnavailable("birth lines are not known: the program is at its exit")
        if self._births_prepared:
            return
        if not _is_plain_cpython():
            raise NativeUnavailable("birth lines are not known: only for release builds of CPython")
        texts = map("\0".join, (foreign_prefixes(), LAYERS, NO_MODELS))
        # one text of 32-bit characters for each list, and its length
        words = ((text.encode(_UTF_32, "surrogatepass"), len(text)) for text in texts)
        refusal = int(self.library.tl_prepare_births(*chain.from_iterable(words)))
        if refusal:
            raise NativeUnavailable(f"birth lines are not known: {_REFUSALS[refusal]}")
        self._births_prepared = True

    def birth_line(self, birth: int) -> tuple[str, int, str]:
        """Return file name, line number and qualified function name of a birth.

        It is the innermost line outside of frameworks, ``tensorlens``, installed packages and the
        standard library, or else the innermost of all.

        Raises:
            LookupError: there is no such birth.
        """
        length = ctypes.c_int64()
        address = self.library.tl_birth_line(birth, ctypes.byref(length))
        if address is None:
            raise LookupError(f"no birth {birth}")
        # a file name may have surrogates in place of bytes that cannot be decoded
        text = ctypes.string_at(address, 4 * length.value).decode(_UTF_32, "surrogatepass")
        # the line may be 0
        filename, _, rest = text.partition("\0")
        return filename, ord(rest[0]), rest[2:]

    def _end(self) -> None:
        with self._lock:
            self._ended = True
            self.library.tl_switch_births(0)


def _is_plain_cpython() -> bool:
    settings = sysconfig.get_config_vars("Py_GIL_DISABLED", "Py_DEBUG", "Py_TRACE_REFS")
    return sys.implementation.name == "cpython" and not any(settings)
