"""The counting CPU allocator: put in place once per process, and never taken out again."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import cast

from tensorlens.frameworks.building import NativeUnavailable, load
from tensorlens.frameworks.torch.native.build import COUNTER

__all__ = ["NativeAllocator", "NativeUnavailable", "install"]

_REFUSALS = {
    1: "the CPU allocator in place cannot be wrapped (it gives no raw deleter)",
    2: "another CPU allocator insists on its place",
}


class NativeAllocator:
    """What torch's CPU allocator has handed out since :func:`install`, in exact bytes.

    Blocks made before count once they are adopted. Blocks of zero bytes do not exist, and memory
    that torch did not allocate (``from_numpy``, shared memory, files) is not counted.
    """

    def __init__(self, library: ctypes.PyDLL) -> None:
        self._library = library
        self.read: Callable[[], tuple[int, int, int]] = self._make_reader()
        """Gives ``(allocated, peak since the last read by anyone, resident set)`` in bytes.

        The resident set is -1 where the system does not tell. Any thread may call it.
        """
        self.allocated: Callable[[], int] = self._accessor("tl_allocated")
        """Gives the bytes handed out now."""
        self.blocks: Callable[[], int] = self._accessor("tl_blocks")
        """Gives the number of blocks handed out now."""
        self.resident: Callable[[], int] = self._accessor("tl_resident")
        """Gives the resident set of the process in bytes, or -1."""
        self.counts_default = bool(self._accessor("tl_counts_default")())
        """Whether ``UntypedStorage(n)``, ``deepcopy`` and unpickling are counted as well."""

    def adopt(self, storages: Sequence[int]) -> int:
        """Count in the storages at these ``StorageImpl`` addresses, and see their release.

        The caller keeps them alive during the call. Those that another allocator made, and those
        already counted, are left alone. Returns how many were taken.
        """
        addresses = (ctypes.c_void_p * len(storages))(*storages)
        function = self._library.tl_adopt
        function.argtypes = (ctypes.c_void_p, ctypes.c_int64)
        function.restype = ctypes.c_int64
        return int(function(ctypes.addressof(addresses), len(storages)))

    def _accessor(self, name: str) -> Callable[[], int]:
        function = getattr(self._library, name)
        function.argtypes = ()
        function.restype = ctypes.c_int64
        return cast(Callable[[], int], function)

    def _make_reader(self) -> Callable[[], tuple[int, int, int]]:
        function = self._library.tl_make_reader
        function.argtypes = ()
        function.restype = ctypes.py_object
        return cast(Callable[[], tuple[int, int, int]], function())


_lock = threading.RLock()
_installed: NativeAllocator | None = None


def install() -> tuple[NativeAllocator, bool]:
    """Put the counting allocator in place; also tell whether this call was the one that did.

    Raises:
        NativeUnavailable: it could not be built, or torch's allocator cannot be wrapped.
    """
    global _installed
    with _lock:
        if _installed is not None:
            return _installed, False
        library = load(COUNTER)
        refusal = int(library.tl_install())
        if refusal:
            raise NativeUnavailable(f"the native CPU counter is not in use: {_REFUSALS[refusal]}")
        _installed = NativeAllocator(library)
        return _installed, True
