"""TensorFlow's CPU allocator, tapped once per process for good, and its log of graph nodes."""

from __future__ import annotations

import ctypes
import functools
import re
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow

from tensorlens.frameworks.compilers import NodeFigures
from tensorlens.frameworks.host.allocator import NativeAllocator, start
from tensorlens.native.build import (
    SOURCES,
    NativePart,
    NativeUnavailable,
    Signatures,
    declare,
    load,
)

__all__ = ["NativeUnavailable", "TensorflowAllocator", "install"]

GENERATED = "__autograph_generated_file"
"""Part of the names of files that autograph makes."""
_LABEL = "the native CPU counter of TensorFlow"
_REFUSALS = {
    1: "its functions are not where they are known to be",
    2: "its object cannot be written",
    3: "what it hands out is not seen",
    4: "there are two allocators, as where TF_CPU_ALLOCATOR_USE_BFC is set",
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
    """Return what a shipped binary must be made for; the headers of a minor release are one."""
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

    Tensors of all threads and functions, variables, and the scratch of kernels; not what libraries
    below the kernels take from malloc for themselves.
    """

    def __init__(self, library: ctypes.PyDLL) -> None:
        super().__init__(library)
        declare(
            library,
            {
                "tl_adopt": (ctypes.c_int64, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
                "tl_call_begins": (ctypes.py_object, (ctypes.c_char_p,)),
                "tl_end": (ctypes.c_int64, (ctypes.py_object,)),
            },
        )
        self._call_begins = library.tl_call_begins
        self._end_begun = library.tl_end

    def adopt(self, addresses: array[int], sizes: array[int]) -> int:
        """Count in blocks from before, ``array('Q')`` and ``array('q')``; return how many.

        Those that are counted already are left alone.
        """
        return int(self.library.tl_adopt(start(addresses), start(sizes), len(addresses)))

    def call(self, function: str) -> object:
        """Say that this thread calls a graph function; what its nodes allocate is by this line.

        Returns what :meth:`end` takes. It also ends when nobody refers to that any more.
        """
        return self._call_begins(function.encode())

    def end(self, begun: object) -> int:
        """Say that it has ended, on the thread where it began; the second time does nothing."""
        return int(self._end_begun(begun))

    def birth_line(self, birth: int) -> tuple[str, int, str]:
        """As of every allocator, with the line that autograph's was made from in its place."""
        line = super().birth_line(birth)
        if GENERATED not in line[0]:
            return line
        # imported here: it reads the heap
        from tensorlens.frameworks.tensorflow.functions import source_line

        return source_line(line)


@functools.cache
def install() -> TensorflowAllocator:
    """Tap the allocator, once.

    Raises:
        NativeUnavailable: it could not be built, or the allocator cannot be tapped.
    """
    library = load(TAP)
    refusal = int(library.tl_install())
    if refusal:
        raise NativeUnavailable(f"{_LABEL} is not in use: {_REFUSALS[refusal]}")
    installed = TensorflowAllocator(library)
    # the trial's peak is not the program's
    installed.read()
    return installed


_AT_ONCE = 256
_address, _number, _small = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_NODE_LOG: Signatures = {
    "tl_nodes_begin": (ctypes.py_object, ()),
    "tl_nodes_fresh": (_number, (_address, _number)),
    "tl_nodes_place": (None, (_small, _address, _number)),
    "tl_nodes_forget_places": (None, ()),
    "tl_nodes_settle": (None, ()),
    "tl_nodes_group": (_small, ()),
    "tl_nodes_look": (None, (_small, _address)),
    "tl_nodes_clear": (None, (_small,)),
    "tl_nodes_lost": (_number, ()),
}


class NodeLog:
    """The native log of nodes. Python says which nodes make up a group once it has met them."""

    def __init__(self, allocator: TensorflowAllocator) -> None:
        self._allocator = allocator
        self._library = allocator.library
        declare(self._library, _NODE_LOG)
        self.settle = self._library.tl_nodes_settle
        self.forget_places = self._library.tl_nodes_forget_places
        """Have all nodes put into groups anew."""
        self.clear = self._library.tl_nodes_clear
        """Forget the figures of a group."""
        self.lost = self._library.tl_nodes_lost
        """How many events could not be added up so far."""

    def call(self) -> object:
        """Log a call from now on; returns what the allocator's ``end()`` takes.

        That gives how many nodes were met that are in no group yet, and if there are none has
        added up what was logged. Else that is for :meth:`settle` to do.
        """
        return self._library.tl_nodes_begin()

    def fresh(self) -> Iterator[tuple[int, str | None, str | None]]:
        """Give the nodes that are in no group yet: key, the name of the function called, name."""
        found = array("i", bytes(12 * _AT_ONCE))
        while count := self._library.tl_nodes_fresh(found.buffer_info()[0], _AT_ONCE):
            numbers = iter(found[: 3 * count])
            for key, function, node in zip(numbers, numbers, numbers, strict=True):
                yield key, self._name(function), self._name(node)

    def place(self, key: int, groups: Sequence[int]) -> None:
        """Say in which groups a node is."""
        numbers = array("i", groups)
        self._library.tl_nodes_place(key, numbers.buffer_info()[0], len(numbers))

    def group(self) -> int:
        """Return a new group.

        Raises:
            MemoryError: there is none for it.
        """
        group = int(self._library.tl_nodes_group())
        if group < 0:
            raise MemoryError
        return group

    def figures(self, group: int) -> NodeFigures:
        """Return the figures of a group, of the calls that are over."""
        found = array("q", bytes(48))
        self._library.tl_nodes_look(group, found.buffer_info()[0])
        return NodeFigures(*found)

    def _name(self, number: int) -> str | None:
        return None if number < 0 else self._allocator.node_name(number)
