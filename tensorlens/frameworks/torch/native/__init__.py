"""The counting CPU allocator: put in place once per process, and never taken out again."""

from __future__ import annotations

import ctypes
from array import array

from tensorlens.frameworks.host.allocator import NativeAllocator, start
from tensorlens.frameworks.torch.native.build import COUNTER
from tensorlens.interpreter import reentrant_lock
from tensorlens.native.build import NativeUnavailable, load

__all__ = ["NativeUnavailable", "TorchAllocator", "install"]

_REFUSALS = {
    1: "the CPU allocator in place cannot be wrapped (it gives no raw deleter)",
    2: "another CPU allocator insists on its place",
}


class TorchAllocator(NativeAllocator):
    """Exact bytes that torch's CPU allocator has handed out since :func:`install`."""

    def __init__(self, library: ctypes.PyDLL) -> None:
        super().__init__(library)
        self.counts_default = bool(library.tl_counts_default())
        """Whether ``UntypedStorage(n)``, ``deepcopy`` and unpickling are counted as well."""

    def adopt(self, tensors: array[int]) -> int:
        """Count in the storages of tensors and of their gradients, and see their release.

        ``tensors`` are the addresses of torch's own objects (``_cdata``), an ``array('Q')``; the
        caller keeps them alive during the call. Storages that another allocator made, and those
        already counted, are left alone. Returns how many were taken.

        Raises:
            MemoryError: there is none left.
        """
        function = self.library.tl_adopt
        function.argtypes = (ctypes.c_void_p, ctypes.c_int64)
        function.restype = ctypes.c_int64
        adopted = int(function(start(tensors), len(tensors)))
        if adopted < 0:
            raise MemoryError
        return adopted


_lock = reentrant_lock()
_installed: TorchAllocator | None = None


def install() -> tuple[TorchAllocator, bool]:
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
        _installed = TorchAllocator(library)
        return _installed, True
