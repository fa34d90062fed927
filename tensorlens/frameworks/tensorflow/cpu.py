"""TensorFlow's CPU allocator: tapped once per process, for good.

If it cannot be tapped, a fallback counts host memory.
"""

from __future__ import annotations

import ctypes
import functools
import re
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow

from tensorlens.frameworks.host.allocator import NativeAllocator, start
from tensorlens.frameworks.host.counters import HostCounterChoice
from tensorlens.frameworks.tensorflow.hooks import SharedHook, follow_graph_calls, noop
from tensorlens.native.build import SOURCES, NativePart, NativeUnavailable, declare, load

_LABEL = "the native CPU counter of TensorFlow"
_REFUSALS = {
    1: "its functions are not virtual",
    2: "its object cannot be written",
    3: "its blocks are not counted",
    4: "there are two allocators, as with TF_CPU_ALLOCATOR_USE_BFC",
}


def _arguments() -> Sequence[str]:
    folder = Path(tensorflow.sysconfig.get_include())
    headers = ("xla/tsl/framework/allocator.h", "tsl/framework/allocator.h")
    if not any((folder / header).is_file() for header in headers):
        raise NativeUnavailable(
            f"{_LABEL} was not built: this TensorFlow has no C++ headers ({folder}): "
            "install tensorflow from its wheels"
        )
    library = tensorflow.sysconfig.get_lib()
    compile_flags = (f for f in tensorflow.sysconfig.get_compile_flags() if f[:2] != "-I")
    return [
        *compile_flags,
        *("-isystem", str(folder)),
        *(flag for flag in tensorflow.sysconfig.get_link_flags() if flag[:2] == "-L"),
        f"-Wl,-rpath,{library}",
    ]


def release() -> str | None:
    """Return the release that a shipped binary must be built for; patch releases share it."""
    published = re.match(r"(\d+\.\d+)\.\d+$", tensorflow.version.VERSION)
    return None if published is None else f"tensorflow{published[1]}"


def _depends_on() -> tuple[Any, ...]:
    versions = tensorflow.version
    return versions.VERSION, versions.GIT_VERSION, tuple(tensorflow.sysconfig.get_compile_flags())


TAP = NativePart(
    "tap",
    _LABEL,
    SOURCES / "tensorflow" / "tap.cpp",
    libraries=tuple(f for f in tensorflow.sysconfig.get_link_flags() if f[:2] == "-l"),
    arguments=_arguments,
    release=release,
    depends_on=_depends_on,
)


class TensorflowAllocator(NativeAllocator):
    """Exact bytes that TensorFlow's CPU allocator has handed out since :func:`install`.

    They include tensors of all threads and functions, variables, and the scratch of kernels, but
    not memory that libraries below the kernels take from malloc.
    """

    source = "TensorFlow CPU allocator"

    def __init__(self, library: ctypes.PyDLL) -> None:
        super().__init__(library)
        declare(
            library,
            {
                "tl_adopt": (ctypes.c_int64, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
                "tl_call_begins": (ctypes.py_object, (ctypes.c_char_p,)),
                "tl_end": (ctypes.c_int64, (ctypes.py_object,)),
                "tl_nodes_begin": (ctypes.py_object, ()),
                "tl_nodes_take": (ctypes.c_void_p, ()),
            },
        )

    def adopt(self, addresses: array[int], sizes: array[int]) -> int:
        """Count blocks from before, unless they are counted; return their number.

        The arrays have the types ``Q`` and ``q``.
        """
        return int(self.library.tl_adopt(start(addresses), start(sizes), len(addresses)))

    def call(self, function: str) -> object:
        """Begin a call of a graph function on this thread; its nodes' blocks get the caller's line.

        Returns an object for :meth:`end`. The call also ends when nothing refers to that any more.
        """
        return self.library.tl_call_begins(function.encode())

    def end(self, scope: object) -> int:
        """End a call, on the thread where it began; a second time does nothing."""
        return int(self.library.tl_end(scope))


@functools.cache
def install() -> TensorflowAllocator:
    """Tap the allocator.

    Raises:
        NativeUnavailable: the native part was not built, or the allocator cannot be tapped.
    """
    library = load(TAP)
    refusal = int(library.tl_install())
    if refusal:
        raise NativeUnavailable(f"{_LABEL} is not in use: {_REFUSALS[refusal]}")
    installed = TensorflowAllocator(library)
    # the peak of the trial allocation is not the program's
    installed.read()
    return installed


_choice = HostCounterChoice(install)
cpu_counter = _choice.counter
allocator = _choice.allocator
recordable = _choice.recordable
block_sizes = _choice.sizes
fallback_reason = _choice.fallback_reason
notes = _choice.notes


def watch() -> Callable[[], None]:
    """Start noting the lines that allocate host memory; return a function that ends this.

    Raises:
        UsageError: ``TENSORLENS_COUNTER`` asks for a counter that is unavailable.
    """
    found = allocator()
    if found is None:
        return noop
    # imported here: it reads the heap's native part
    from tensorlens.frameworks.tensorflow.census.findings import adopt_all

    adopt_all(found)
    try:
        return _watched.add()
    except NativeUnavailable:
        # names and sizes are known without births
        return noop


def _watch_births() -> Callable[[], None]:
    """Note births, and calls of graph functions, whose nodes run on other threads."""
    found = recordable()
    found.watch_births()
    unfollow = follow_graph_calls(lambda name: functools.partial(found.end, found.call(name)))

    def end() -> None:
        found.watch_births(False)
        unfollow()

    return end


_watched = SharedHook(_watch_births)
