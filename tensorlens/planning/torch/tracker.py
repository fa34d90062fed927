"""Logs the allocation and the free of every storage of fake tensors."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from tensorlens.planning.patches import intercepted
from tensorlens.planning.torch.memory.kernels import Scratch, ScratchRule
from tensorlens.planning.torch.names import INPUT_OPERATORS, InputNames, label_of
from tensorlens.planning.torch.operators.losses import keep_elements
from tensorlens.planning.torch.stacks import ProgramStacks
from tensorlens.planning.trace import Trace
from tensorlens.records.logs.events import ALLOC, FREE, Context, Label, Mark
from tensorlens.records.torch_files.sizes import MIN_BLOCK
from tensorlens.units import rounded_up

_sequence = torch._C._autograd._get_sequence_nr
_node_running = torch._C._current_autograd_node
_AUTOGRAD = -1
"""The ident of autograd's own threads."""
_PLAIN = (FakeTensor, torch.Tensor, torch.nn.Parameter)
_METADATA: Mapping[Any, Callable[[Any], Any]] = vars(fake_tensor).get("_DISPATCH_META_HANDLERS", {})
"""Handlers of operators that read metadata (device, size): two thirds of all calls."""


_New = tuple[Any, Any, str]
"""Tensor, its storage and its device."""


class Tracker(TorchDispatchMode):  # type: ignore[misc]
    """A dispatch mode above a ``FakeTensorMode`` that writes requests into a trace.

    ``scratch_rule`` returns what operators take besides their results; ``backward_has_thread``:
    autograd would run the backward pass on threads of its own.
    """

    def __init__(
        self,
        trace: Trace,
        stacks: ProgramStacks,
        scratch_rule: ScratchRule | None = None,
        *,
        backward_has_thread: bool = False,
    ) -> None:
        super().__init__()
        self._backward_has_thread = backward_has_thread
        self.trace = trace
        self._log = trace.log
        self._stacks = stacks
        self._scratch_rule = scratch_rule
        self._live: dict[int, _Storage] = {}
        """Live storages by address."""
        self._blocks = 0
        self._here = _ThreadState()
        self._threads: dict[int, int] = {}
        self._contexts: dict[tuple[Any, ...], int] = {}
        self._lock = threading.RLock()
        self.allocated: dict[str, int] = {}
        """Bytes allocated now by device, rounded up as by its allocator."""
        self.peaks: dict[str, int] = {}
        self._input_names = InputNames()
        self._resizing = intercepted(self._resize, (torch.UntypedStorage, "resize_"))

    def __enter__(self) -> Tracker:
        self._resizing.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._resizing.__exit__(None, None, None)

    def _resize(self, resize_: Any, storage: Any, size: int) -> Any:
        result = resize_(storage, size)
        here = self._here
        if here.op is not None:
            self._resized(storage)
        else:
            # called by the program; intercepted() adds the frame between
            here.frame, here.place, here.grad = sys._getframe(2), None, False
            self._resized(storage)
            here.frame = None
        return result

    def mark(self, name: str, row: int | None = None) -> None:
        """Mark this moment, or the one before event ``row``."""
        with self._lock:
            self._log.marks.append(Mark(name, len(self._log) if row is None else row, 0))

    def forget_marks(self) -> None:
        """Remove all marks."""
        self._log.marks.clear()

    def empty_cache(self, device: str) -> None:
        """Log that the program released cached memory."""
        with self._lock:
            self.trace.emptied.append((len(self._log), device))

    def reset_peak(self, device: str) -> None:
        """Restart the peak from what is allocated now."""
        self.peaks[device] = self.allocated.get(device, 0)

    def row_of(self, tensor: Any) -> int | None:
        """Return the row of a tensor's storage; None if it is not in the trace."""
        if not isinstance(tensor, FakeTensor) or tensor.layout is not torch.strided:
            return None
        known = self._live.get(tensor.untyped_storage()._cdata)
        return None if known is None else known.row

    def name(self, row: int, label: Label) -> None:
        """Label a block, unless it has a label."""
        with self._lock:
            if self._log.label[row] < 0:
                self._log.name(row, label)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operator and log its new storages and its scratch."""
        metadata = _METADATA.get(func)
        if metadata is not None and type(args[0]) is FakeTensor:
            # otherwise the next operator would seem to have made a node
            self._here.sequence = _sequence()
            return metadata(args)
        for kind in types:
            if kind not in _PLAIN and not issubclass(kind, FakeTensor):
                # a tensor made of others: the operator comes again with its parts
                return NotImplemented
        here = self._here
        here.op, here.frame, here.place = func, sys._getframe(1), None
        # autograd numbers its nodes: a new number since this thread's last operator means that a
        # node was made for this one (Context.grad)
        made = _sequence()
        here.grad = made != here.sequence
        here.sequence = made
        try:
            result = func(*args, **({} if kwargs is None else kwargs))
            keep_elements(func, args, result)
            new = list(self._new(result))
            scratch: Sequence[Scratch] = ()
            if self._scratch_rule is not None:
                scratch = self._scratch_rule(func, args, kwargs or {}, result, self._thread())
            if new or scratch:
                self._log_result(new, scratch)
            return result
        finally:
            here.op = here.frame = None

    def _new(self, result: Any) -> Iterator[_New]:
        """Yield the tensors with new storages."""
        if isinstance(result, torch.Tensor):
            if isinstance(result, FakeTensor):
                device = str(result.fake_device)
                for part in _parts(result):
                    storage = part.untyped_storage()
                    known = self._live.get(storage._cdata)
                    if known is None:
                        yield part, storage, device
                    elif known.nbytes != storage.nbytes():
                        self._resized(storage)
        elif isinstance(result, (list, tuple)):
            for each in result:
                yield from self._new(each)

    def _log_result(self, new: Sequence[_New], scratch: Sequence[Scratch]) -> None:
        with self._lock:
            device = new[0][2] if new else self._here.device
            taken = [self._take(each, device) for each in scratch if each.is_taken_first]
            seen = set()
            for tensor, storage, where in new:
                if storage._cdata not in seen:
                    seen.add(storage._cdata)
                    self._log_storage(tensor, storage, where)
            taken += [self._take(each, device) for each in scratch if not each.is_taken_first]
            for row in taken:
                if row is not None:
                    self._free(row)

    def _take(self, scratch: Scratch, device: str) -> int | None:
        """Log scratch; return its row, or None if it outlives the operator."""
        row = self._allocate(device, scratch.nbytes, scratch.name)
        self.trace.scratch[row] = scratch.name
        if scratch.least != scratch.most:
            self.trace.bounds[row] = scratch.least, scratch.most
        return None if scratch.is_kept else row

    def _log_storage(self, tensor: Any, storage: Any, device: str) -> None:
        if device == "meta":
            return
        known = self._live[storage._cdata] = _Storage(storage, self._storage_freed)
        known.address, known.nbytes = storage._cdata, storage.nbytes()
        known.row = self._allocate(device, known.nbytes)
        here = self._here
        if not here.grad and here.op is not None and here.op._schema.name in INPUT_OPERATORS:
            name = self._input_names.name(here.frame)
            if name is not None:
                self.trace.inputs[known.row] = label_of(tensor, name, "input")

    def _storage_freed(self, storage: _Storage) -> None:
        with self._lock:
            if self._live.get(storage.address) is storage:
                del self._live[storage.address]
                self._free(storage.row)

    def _resized(self, storage: Any) -> None:
        """Log a storage's new size: a new block, then the free of the old one."""
        with self._lock:
            known = self._live.get(storage._cdata)
            if known is None or known.nbytes == storage.nbytes():
                return
            old, known.nbytes = known.row, storage.nbytes()
            known.row = self._allocate(self._log.devices[self._log.device[old]], known.nbytes)
            self._free(old)

    def _allocate(self, device: str, nbytes: int, name: str | None = None) -> int:
        self._here.device = device
        stack, context = self._place(name)
        self._blocks += 1
        row = self._log.append(ALLOC, device, self._blocks, nbytes, len(self._log), stack)
        self._log.context[row] = context
        held = self.allocated.get(device, 0) + rounded(device, nbytes)
        self.allocated[device] = held
        self.peaks[device] = max(held, self.peaks.get(device, 0))
        return row

    def _free(self, row: int) -> None:
        log = self._log
        device = log.devices[log.device[row]]
        nbytes = log.size[row]
        stack, context = self._here.place or self._here.last
        freed = log.append(FREE, device, log.address[row], nbytes, len(log), stack)
        log.context[freed] = context
        self.allocated[device] -= rounded(device, nbytes)

    def _place(self, name: str | None) -> tuple[int, int]:
        """Return the current stack and context of this thread."""
        here = self._here
        if here.place is None:
            node, forward, name_of_node = _node_running(), -1, None
            if node is not None:
                # number of the stack that made it
                noted = node.metadata.get("traceback_")
                forward, name_of_node = int(noted[0]) if noted else -1, node.name()
            key = self._thread(), here.op, name_of_node, forward, here.grad
            context = self._contexts.get(key)
            if context is None:
                op = None if here.op is None else here.op._schema.name
                made = Context(
                    thread=key[0], op=op, node=name_of_node, forward=forward, grad=here.grad
                )
                context = self._contexts[key] = self._log.contexts.number(made)
            here.place = self._stacks.node(here.frame), context
            here.last = here.place
        if name is None:
            return here.place
        stack, context = here.place
        outer = self._log.contexts[context]
        named = replace(outer, op=name, outer=outer.op)
        return stack, self._log.contexts.number(named)

    def _thread(self) -> int:
        """Return the number of the thread that would run this with a real device.

        Autograd then runs the backward pass on a thread of its own for each device.
        """
        ident = threading.get_ident()
        if self._backward_has_thread and _node_running() is not None:
            ident = _AUTOGRAD
        return self._threads.setdefault(ident, len(self._threads))


class _ThreadState(threading.local):
    """The operator that runs on a thread, its place, and where the last one ran."""

    frame: Any = None
    op: Any = None
    grad: bool = False
    sequence: int = -1
    device: str = "cpu"
    place: tuple[int, int] | None = None
    last: tuple[int, int] = (-1, -1)


class _Storage(weakref.ref[Any]):
    """A weak reference to a live storage, with its row."""

    __slots__ = ("address", "nbytes", "row")

    address: int
    nbytes: int
    row: int


def rounded(device: str, nbytes: int) -> int:
    """Return the block size for a request, by the simplest rule of a device's allocator."""
    return nbytes if device == "cpu" else rounded_up(nbytes, MIN_BLOCK)


def _parts(tensor: Any) -> tuple[Any, ...]:
    """Return the tensors that a tensor consists of; none for unknown layouts."""
    if tensor.layout is torch.strided:
        return (tensor,)
    return (tensor._indices(), tensor._values()) if tensor.layout is torch.sparse_coo else ()
