"""A watch of a torch program's steps, for :class:`StepFacts`."""

from __future__ import annotations

import contextlib
import dis
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from traceback import walk_stack
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import dataloader

from tensorlens.frameworks.queues import batch_bytes, holds_tensors
from tensorlens.frameworks.torch.census.findings import named_tensors
from tensorlens.frameworks.torch.census.graph import storage_address, walk
from tensorlens.frameworks.torch.data_loader import named, number
from tensorlens.heap import instances
from tensorlens.heap.attributes import class_name, content_of
from tensorlens.planning.patches import intercepted
from tensorlens.planning.step_facts import (
    BACKWARD,
    OptimizerFacts,
    PrefetchQueue,
    RepeatedBlock,
    StepFacts,
    UnusedVariable,
    plain_name,
)
from tensorlens.planning.torch.options.models import Stage, cache_configs, repeated_blocks
from tensorlens.user_code import is_foreign

_HALVES = (torch.bfloat16, torch.float16)
_NOT_REENTRANT = '{"use_reentrant": False}'


class StepWatch:
    """Watches the steps of a program; ``mark`` is called with a name for the moment."""

    def __init__(self, mark: Callable[[str], None]) -> None:
        self.is_last = False
        """Whether this is the last step: only then variables are read. Before Python 3.13 a frame
        whose variables were read keeps them alive until its function returns."""
        self._mark = mark
        self._sets_to_none: bool | None = None
        self._inside = False
        self._has_low_precision = False
        self._unused_variables: dict[tuple[str, str], UnusedVariable] = {}
        self._loaders = LoaderWatch()

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Watch the calls of ``zero_grad()`` and ``backward()``, and loaders."""
        zeroing = (torch.optim.Optimizer, "zero_grad"), (torch.nn.Module, "zero_grad")
        passing = (torch.Tensor, "backward"), (torch.autograd, "backward")
        with (
            intercepted(self._zero_grad, *zeroing),
            intercepted(self._backward, *passing),
            self._loaders.on(),
        ):
            yield

    def facts(self, is_whole: bool) -> StepFacts:
        """Return the facts of now, with the models and optimizers that are alive."""
        models = Stage(estimated=False, batch=None).models()
        _, path = named_tensors((), near=False)
        lengths = {
            id(child): 0 if isinstance(each, torch.nn.ModuleDict) else len(vars(each)["_modules"])
            for model in models
            for each in model.modules()
            for child in each.children()
        }
        parameters = [each for model in models for each in model.parameters()]
        whole = sum(each.nbytes for each in parameters)
        lower = sum(each.nbytes for each in parameters if each.dtype in _HALVES)
        return StepFacts(
            model=_variable(models, path),
            blocks=tuple(
                RepeatedBlock(where, class_name(block), lengths.get(id(block)))
                for block in repeated_blocks(models)
                if (where := path(id(block), class_name(block))) is not None
            ),
            optimizers=tuple(
                _facts_of(each)
                for each in instances(torch.optim.Optimizer)
                # accelerate's wrapper has no state of its own
                if "state" in vars(each)
            ),
            sets_to_none=self._sets_to_none,
            has_low_precision=self._has_low_precision or 2 * lower > whole,
            unused_variables=tuple(self._unused_variables.values()),
            queues=self._loaders.most,
            is_whole=is_whole,
            has_cache=bool(cache_configs(models)),
            own_checkpoints=_own_checkpoints(models),
        )

    def _zero_grad(self, function: Any, owner: Any, set_to_none: bool = True) -> Any:
        if self._inside:
            return function(owner, set_to_none)
        self._sets_to_none, self._inside = bool(set_to_none), True
        try:
            return function(owner, set_to_none)
        finally:
            self._inside = False

    def _backward(self, function: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._inside:
            self._mark(BACKWARD)
            # a graph that is not understood must not end the program
            with contextlib.suppress(Exception):
                self._look(tensors)
        before, self._inside = self._inside, True
        try:
            return function(tensors, *args, **kwargs)
        finally:
            self._inside = before

    def _look(self, tensors: Any) -> None:
        """Note the variables that backward does not need, and low precision."""
        given = tensors if isinstance(tensors, list | tuple) else [tensors]
        roots = [each for each in given if isinstance(each, torch.Tensor)]
        graph = walk((each.grad_fn for each in roots), lambda: True)
        saved = [each.tensor for each in graph.saved]
        self._has_low_precision |= any(each.dtype in _HALVES for each in (*roots, *saved))
        if not self.is_last:
            return
        needed = {*map(storage_address, (*roots, *saved, *graph.leaves.values()))}
        self._unused_variables.clear()
        for frame, _ in walk_stack(sys._getframe(2)):
            if not is_foreign(frame.f_code.co_filename):
                for name in unused(frame):
                    self._add(frame, name, needed)

    def _add(self, frame: FrameType, name: str, needed: set[int]) -> None:
        code, tensor = frame.f_code, frame.f_locals.get(name)
        if not isinstance(tensor, torch.Tensor) or tensor.is_leaf:
            return
        address = storage_address(tensor)
        if address and address not in needed:
            function = code.co_qualname
            self._unused_variables[function, name] = UnusedVariable(
                name, function, code.co_filename, frame.f_lineno, address
            )


class LoaderWatch:
    """A watch of the iterators over DataLoaders."""

    def __init__(self) -> None:
        self._queues: WeakKeyDictionary[Any, PrefetchQueue] = WeakKeyDictionary()
        self.most: tuple[PrefetchQueue, ...] = ()
        """The queues at the time when most bytes were asked for ahead."""

    def on(self) -> contextlib.AbstractContextManager[None]:
        """Look at each batch that an iterator returns."""
        return intercepted(self._next, (dataloader._BaseDataLoaderIter, "__next__"))

    def _next(self, function: Any, iterator: Any) -> Any:
        # batches asked for and not returned: made, in work, or waiting for a worker
        tasks = content_of(iterator).get("_task_info")
        asked = len(tasks) if type(tasks) is dict else 0
        try:
            batch = function(iterator)
        except StopIteration:
            self._queues.pop(iterator, None)
            raise
        # strange batches must not end the loop
        with contextlib.suppress(Exception):
            self._look(iterator, asked, batch)
        return batch

    def _look(self, iterator: Any, asked: int, batch: Any) -> None:
        content, nbytes = content_of(iterator), batch_bytes(batch)
        workers, prefetch = number(content, "_num_workers"), number(content, "_prefetch_factor")
        if not workers or not nbytes:
            return
        memory = "shared memory" if holds_tensors(batch) else "memory of the workers"
        if "_pin_memory_thread" in content:
            memory = "pinned memory"
        name = named("DataLoader", workers, prefetch)
        queue = PrefetchQueue(name, asked, workers, nbytes, memory)
        before = self._queues.get(iterator, queue)
        self._queues[iterator] = replace(
            before,
            batches=max(asked, before.batches),
            batch_nbytes=max(nbytes, before.batch_nbytes),
        )
        now = tuple(self._queues.values())
        if _nbytes(now) > _nbytes(self.most):
            self.most = now


def _nbytes(loaders: tuple[PrefetchQueue, ...]) -> int:
    return sum(each.batches * each.batch_nbytes for each in loaders)


def _facts_of(optimizer: torch.optim.Optimizer) -> OptimizerFacts:
    groups = optimizer.param_groups
    sizes = [each.nbytes for group in groups for each in group["params"]]
    default = _default_decay(type(optimizer))
    return OptimizerFacts(
        kind=class_name(optimizer),
        momentum=any(group.get("momentum") for group in groups),
        decays=any(group.get("weight_decay", default) != default for group in groups),
        largest=max(sizes, default=0),
        rate=_common_rate(groups),
    )


def _default_decay(kind: type) -> Any:
    try:
        return inspect.signature(kind).parameters["weight_decay"].default
    except (KeyError, TypeError, ValueError):
        # no weight decay, or no readable signature
        return 0


def _common_rate(groups: Sequence[Mapping[str, Any]]) -> float | None:
    # schedules keep the initial rate
    rates = [group.get("initial_lr", group.get("lr")) for group in groups]
    is_one = len({type(each) for each in rates}) == 1 and type(rates[0]) in (float, int)
    return float(rates[0]) if is_one and len({*rates}) == 1 else None


def _variable(models: Sequence[torch.nn.Module], path: Callable[[int, str], str | None]) -> str:
    """Return the program's name of its only model; empty if it goes by its class."""
    if len(models) != 1:
        return ""
    kind = class_name(models[0])
    name = plain_name(path(id(models[0]), kind) or "")
    return name if name.isidentifier() and name != kind else ""


def _own_checkpoints(models: Sequence[torch.nn.Module]) -> str:
    """Return the call that makes models of transformers, or PEFT around them, checkpoint."""
    if not models or not all(map(_supports_checkpoints, models)):
        return ""
    is_trained = all(each.requires_grad for model in models for each in model.parameters())
    # reentrant checkpoints, transformers' default before 5, need an input that requires a gradient
    return f"gradient_checkpointing_enable({'' if is_trained else _NOT_REENTRANT})"


def _supports_checkpoints(model: torch.nn.Module) -> bool:
    try:
        # PEFT forwards attributes of the model inside
        is_supported = getattr(model, "supports_gradient_checkpointing", False) is True
        return is_supported and callable(getattr(model, "gradient_checkpointing_enable", None))
    except Exception:
        return False


def unused(frame: FrameType) -> tuple[str, ...]:
    """Return the variables that the function will not read again before it stores them.

    Variables that inner functions use are left out, and so are globals.
    """
    code = frame.f_code
    left_out = {*code.co_cellvars, *code.co_freevars, *_read_after(code, frame.f_lasti)}
    return tuple(name for name in code.co_varnames if name not in left_out)


_ENDS = ("RETURN_", "RAISE_", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD")
"""Prefixes of instructions after which the next one does not run."""


def _read_after(code: CodeType, last: int) -> set[str]:
    """Return the variables that may be read after an instruction before they are stored."""
    bytecode = dis.Bytecode(code)
    instructions = [*bytecode]
    index_at = {each.offset: index for index, each in enumerate(instructions)}
    following = min((each for each in index_at if each > last), default=last)
    entries = bytecode.exception_entries  # type: ignore[attr-defined]
    handlers = [each.target for each in entries if each.start <= last < each.end]
    names = frozenset(code.co_varnames)
    waiting = [(index_at[each], names) for each in (following, *handlers)]
    seen: dict[int, frozenset[str]] = {}
    read: set[str] = set()
    while waiting:
        index, unstored = waiting.pop()
        if unstored <= seen.get(index, frozenset()) or index == len(instructions):
            continue
        seen[index] = unstored = unstored | seen.get(index, frozenset())
        each = instructions[index]
        # from Python 3.13 on one instruction may store one variable and load another
        accesses = re.findall("(LOAD|STORE|DELETE)_FAST", each.opname)
        given = each.argval if isinstance(each.argval, tuple) else (each.argval,)
        for access, name in zip(accesses, given, strict=False):
            if access == "LOAD":
                read |= unstored & {name}
            unstored -= {name}
        if not each.opname.startswith(_ENDS):
            waiting.append((index + 1, unstored))
        if each.opcode in (*dis.hasjrel, *dis.hasjabs):
            waiting.append((index_at[each.argval], unstored))
    return read
