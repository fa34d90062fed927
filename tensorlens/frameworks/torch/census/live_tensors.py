"""Search for torch's tensors: gradients, parts of irregular tensors, autograd's graph, buckets."""

from __future__ import annotations

import _thread
import contextlib
import threading
import types
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensorlens.frameworks.torch.census.graph import Graph, Saved, maker_of, walk
from tensorlens.frameworks.torch.census.names.naming import Naming, instance_dict
from tensorlens.frameworks.torch.census.scan import IRREGULAR, REQUIRES_GRAD, open_scan
from tensorlens.heap.attributes import class_name, is_subtype, mro, vars_of_type

_base = torch._C.TensorBase
_MAX_WAIT = 0.3
"""Maximum seconds to wait for a reducer, which is locked while it reduces or calls a hook."""


def _flag_table(wanted: int) -> bytes:
    """Return a table for ``bytes.translate()``: 1 for flags with any of the wanted bits, else 0."""
    return bytes(bool(flags & wanted) for flags in range(256))


_IRREGULAR, _FOLLOWED, _IRREGULAR_OR_FOLLOWED = map(
    _flag_table, (IRREGULAR, REQUIRES_GRAD, IRREGULAR | REQUIRES_GRAD)
)


@dataclass(frozen=True, slots=True)
class TensorPart:
    """A tensor that holds a part or all of another's memory."""

    name: str
    """Name of the part: ``indices``; empty if it is the whole content."""
    tensor: Any
    note: str


class FoundTensors:
    """All tensors that were found, as rows of :attr:`scan`."""

    def __init__(
        self, tensors: list[Any], naming: Naming, nodes: Sequence[Any], can_read: Callable[[], bool]
    ) -> None:
        """Find further tensors from those of the heap.

        Args:
            tensors: tensors of the heap; the others are appended.
            naming: tensors that have names.
            nodes: autograd's nodes of the heap.
            can_read: returns whether a node can be read now, see
                :mod:`~tensorlens.frameworks.torch.census.undisturbed`.
        """
        self._can_read = can_read
        self.scan = open_scan()
        self.tensors = tensors
        """All tensors, kept alive until the census ends."""
        self._rows = self.scan.add(self.tensors)
        self.given_rows = self._rows_of(naming)
        """Row of each item of ``naming``."""
        self.parts: dict[int, list[tuple[int, TensorPart]]] = {}
        """Row of an irregular tensor to its parts, each with its row."""
        self.makers: dict[int, Any] = {}
        """Row of a tensor to its ``grad_fn``."""
        self.graph = Graph()
        self.leaves: list[int] = []
        """Rows of the graph's leaves."""
        self.saved_of_storage: dict[int, list[tuple[Saved, int]]] = {}
        """First row of a storage to the tensors in it that autograd saved, each with its row."""
        self._add_gradients()
        self._add_irregular_parts()
        self.in_python = len(self.scan.nbytes)
        """First row of the tensors that only autograd's graph holds."""
        self._walk_graph(nodes)
        self.sharing: dict[int, list[int]] = {}
        """First row of a storage to the other rows before ``in_python`` that share it."""
        if self.scan.shares:
            for row, place in enumerate(self.scan.first[: self.in_python]):
                if place != row:
                    self.sharing.setdefault(place, []).append(row)

    def _add_rows(self, tensors: Sequence[Any]) -> array[int]:
        """Add tensors, whose Python objects may be new, and return their rows."""
        rows = self.scan.add(tensors)
        self.tensors.extend(tensors)
        self._rows.extend(rows)
        return rows

    def _rows_of(self, naming: Naming) -> array[int]:
        rows = self.scan.rows_of(naming.addresses) if naming.items else array("i")
        # gc.freeze() hides objects of the heap
        if rows and min(rows) < 0:
            unknown = [item for item, row in zip(naming.items, rows, strict=True) if row < 0]
            self._add_rows(unknown)
            rows = self.scan.rows_of(naming.addresses)
        return rows

    def _with_flags(self, flags: bytes) -> tuple[list[Any], array[int]]:
        """Return the tensors that have some of the flags, and the row of each."""
        having = self.scan.flags.tobytes().translate(flags)
        if 1 not in having:
            return [], array("i")
        # objects without a row have row -1: it reads this last byte
        having += b"\0"
        chosen = bytes(map(having.__getitem__, self._rows))
        return [*compress(self.tensors, chosen)], array("i", compress(self._rows, chosen))

    def _add_gradients(self) -> None:
        """Add the gradients that are needed as objects: irregular ones, and roots of graphs."""
        gradients = self.scan.gradients
        chosen = self.scan.flags.tobytes().translate(_IRREGULAR_OR_FOLLOWED)
        owners = {*compress(self.scan.owners, map(chosen.__getitem__, gradients))}
        if owners:
            pairs = zip(self.tensors, self._rows, strict=True)
            self._add_rows([_base.grad.__get__(tensor) for tensor, row in pairs if row in owners])

    def _add_irregular_parts(self) -> None:
        for tensor, row in zip(*self._with_flags(_IRREGULAR), strict=True):
            self._add_parts(row, _parts_of(tensor))

    def _add_parts(self, row: int, parts: list[TensorPart]) -> None:
        if parts and row not in self.parts:
            rows = self._add_rows([part.tensor for part in parts])
            self.parts[row] = list(zip(rows, parts, strict=True))
            for inner, part in zip(rows, parts, strict=True):
                if inner >= 0 and inner != row and self.scan.flags[inner] & IRREGULAR:
                    self._add_parts(inner, _parts_of(part.tensor))

    def _walk_graph(self, nodes: Sequence[Any]) -> None:
        self._ask_makers(*self._with_flags(_FOLLOWED))
        self.graph = walk((*self.makers.values(), *nodes), self._can_read)
        leaves = self._add_rows(list(self.graph.leaves.values()))
        self.leaves = [row for row in leaves if row >= 0]
        tensors = [saved.tensor for saved in self.graph.saved]
        rows = self._add_rows(tensors)
        for saved, row in zip(self.graph.saved, rows, strict=True):
            if row >= 0:
                self.saved_of_storage.setdefault(self.scan.first[row], []).append((saved, row))
        pairs = [pair for pair in zip(tensors, rows, strict=True) if pair[1] >= 0]
        flags = self.scan.flags
        followed = [pair for pair in pairs if flags[pair[1]] & REQUIRES_GRAD]
        self._ask_makers([tensor for tensor, _ in followed], [row for _, row in followed])
        for tensor, row in pairs:
            if flags[row] & IRREGULAR:
                self._add_parts(row, _parts_of(tensor))

    def _ask_makers(self, tensors: Sequence[Any], rows: Sequence[int]) -> None:
        """Note the nodes that made tensors."""
        try:
            makers = [*map(_base.grad_fn.__get__, tensors)]
        except Exception:
            makers = [*map(maker_of, tensors)]
        self.makers.update(pair for pair in zip(rows, makers, strict=True) if pair[1] is not None)


def _parts_of(tensor: Any) -> list[TensorPart]:
    """Return the parts of an irregular tensor, as far as there are any.

    Runs no code of a subclass: its inner tensors are read from its ``__dict__`` and its slots.
    """
    with torch._C.DisableTorchFunctionSubclass():
        try:
            layout = _base.layout.__get__(tensor)
            if layout in _SPARSE:
                name, shape = str(layout).removeprefix("torch."), tuple(_base.size(tensor))
                note = f"part of a {name} tensor {shape}"
                getters = _SPARSE[layout].items()
                return [TensorPart(part, getter(tensor), note) for part, getter in getters]
            return _inner(tensor)
        except Exception:
            return []


def _inner(tensor: Any) -> list[TensorPart]:
    kind = class_name(tensor)
    inner = [
        (name, item)
        for name, item in (*_slots(tensor), *dict.items(instance_dict(tensor) or {}))
        if type(name) is str and issubclass(type(item), torch.Tensor) and item is not tensor
    ]
    if kind == "DTensor":
        shape = tuple(_base.size(tensor))
        note = f"local part of a DTensor {shape}"
        return [TensorPart("", item, note) for name, item in inner if name == "_local_tensor"]
    if len(inner) == 1:
        return [TensorPart("", inner[0][1], f"inside a {kind}")]
    return [TensorPart(name, item, f"part of a {kind}") for name, item in inner]


def _slots(tensor: Any) -> Iterator[tuple[str, Any]]:
    """Yield the ``__slots__`` that are set: a DTensor keeps its local part in one."""
    for kind in mro(type(tensor)):
        if kind is torch.Tensor:
            return
        for name, member in vars_of_type(kind).items():
            if type(member) is types.MemberDescriptorType:
                try:
                    yield name, member.__get__(tensor)
                except AttributeError:
                    continue


def _accessors(*names: str) -> dict[str, Callable[[Any], Any]]:
    return {name.strip("_"): getattr(_base, name) for name in names}


_COMPRESSED_ROWS = _accessors("crow_indices", "col_indices", "values")
_COMPRESSED_COLUMNS = _accessors("ccol_indices", "row_indices", "values")
_SPARSE: dict[Any, dict[str, Callable[[Any], Any]]] = {
    torch.sparse_coo: _accessors("_indices", "_values"),
    torch.sparse_csr: _COMPRESSED_ROWS,
    torch.sparse_bsr: _COMPRESSED_ROWS,
    torch.sparse_csc: _COMPRESSED_COLUMNS,
    torch.sparse_bsc: _COMPRESSED_COLUMNS,
}


def reducer_buckets(objects: Sequence[Any]) -> Iterator[tuple[Any, int, Any]]:
    """Yield ``(module, index, bucket)`` for each DistributedDataParallel among objects.

    C++ alone holds the buckets; a dispatch mode sees them. It lets no operator run: no memory is
    allocated, and no event of a device is awaited.

    Nothing is yielded for a reducer that stays locked: in a communication hook, or while another
    thread waits for the gradients of other processes. With sparse gradients the buckets end before
    the first that is not allocated yet.
    """
    for module in _wrappers(objects):
        reducer = dict.get(instance_dict(module) or {}, "reducer")
        # an estimate has a reducer of its own; some builds of torch have none
        kind = getattr(getattr(torch._C, "_distributed_c10d", None), "Reducer", None)
        if kind is not None and type(reducer) is kind:
            for index, bucket in enumerate(_read(reducer)):
                yield module, index, bucket


def _wrappers(objects: Sequence[Any]) -> list[Any]:
    wrapper = torch.nn.parallel.DistributedDataParallel
    # these may be all objects of the heap; by id(), as the hash of a type may run code of its
    # metaclass, and so may issubclass()
    kinds = {id(kind): kind for kind in map(type, objects)}
    wanted = {number for number, kind in kinds.items() if is_subtype(kind, wrapper)}
    return [each for each in objects if id(type(each)) in wanted] if wanted else []


class _ZerosProbe(TorchDispatchMode):  # type: ignore[misc]
    """Collects the arguments of ``zeros_like()``, and returns them in place of the zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func is not torch.ops.aten.zeros_like.default:
            return func(*args, **(kwargs or {}))
        self.seen.append(args[0])
        return args[0]


def _read(reducer: Any) -> list[Any]:
    """Return the buckets, read by another thread, which waits if the reducer is locked."""
    probe, done = _ZerosProbe(), threading.Event()

    def read() -> None:
        with contextlib.suppress(BaseException), probe:
            reducer._get_zeros_like_grad_buckets()
        done.set()

    # no thread can start while the interpreter exits
    with contextlib.suppress(RuntimeError):
        _thread.start_new_thread(read, ())
        done.wait(_MAX_WAIT)
    return probe.seen[:]
