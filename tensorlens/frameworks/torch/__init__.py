"""What ``lines`` asks of torch: counters, modules and compiled functions."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from tensorlens.frameworks.base import (
    UNKNOWN,
    Counter,
    Findings,
    Recorder,
    RecordOptions,
    Root,
    Steps,
    compiler,
)
from tensorlens.frameworks.traced_code import TracedCode
from tensorlens.records.failures import KeptGraph, Request


class Adapter:
    """torch, as :class:`tensorlens.frameworks.base.Framework` describes it."""

    name = "torch"

    def __init__(self) -> None:
        from tensorlens.frameworks.torch.release import check_release

        check_release()
        import torch

        from tensorlens.frameworks.torch import accelerators

        compiler.is_tracing = torch.compiler.is_compiling
        # bound once: a build with accelerators asks for the used ones at every profiled line
        self._accelerators = accelerators

    def cpu_counter(self) -> Counter:
        """Return the counter of host memory: torch's CPU allocator, or a fallback.

        Raises:
            UsageError: ``TENSORLENS_COUNTER`` asks for one that cannot be had.
        """
        from tensorlens.frameworks.torch import cpu

        return cpu.cpu_counter()

    def has_accelerators(self) -> bool:
        """Return whether this torch was built for any accelerator."""
        return self._accelerators.has_accelerators()

    def used_devices(self) -> Sequence[str]:
        """Return the names of the accelerators in use so far, initialising none."""
        return self._accelerators.used_devices()

    def device_counter(self, device: str) -> Counter:
        """Return the counter of an accelerator.

        Raises:
            DeviceError: no such device here.
        """
        return self._accelerators.device_counter(device)

    def device_name(self, device: Any) -> str:
        """Return torch's full spelling of a device: ``cuda`` and ``0`` are ``cuda:0``.

        Raises:
            DeviceError: it surely does not exist here.
        """
        self._accelerators.check_device(device)
        return self._accelerators.canonical(device)

    def compiled_by(self, function: Any) -> str | None:
        """Return ``torch.compile``, ``torch.jit.script`` or ``torch.jit.trace``, or None.

        Looks at ``function`` and at what it wraps, without importing the compilers. A function
        that was traced is told apart from a scripted one only when it is a module: torch gives
        both the same type otherwise, and the answer is ``torch.jit.script``.
        """
        seen: set[int] = set()
        while function is not None and id(function) not in seen:
            seen.add(id(function))
            compiler = _compiler_of(function)
            if compiler is not None:
                return compiler
            function = _wrapped_by(function)
        return None

    def follow_code(self, code: CodeType) -> TracedCode | None:
        """Compiled code is told as a whole."""
        return None

    def forward_of(self, item: Any) -> str | None:
        """Return ``forward`` when ``item`` is an instance of ``nn.Module``, else None.

        Of a layer of Keras, which is one where torch is its backend, it is ``call``.
        """
        from torch.nn import Module

        from tensorlens.frameworks.keras import kinds

        if not issubclass(type(item), Module):
            return None
        return "call" if issubclass(type(item), kinds.layer()) else "forward"

    def keep_compilers_out(self, functions: Sequence[Callable[..., Any]]) -> None:
        """Let code that ``torch.compile`` compiles call these as they are.

        As ``torch.compiler.disable`` does, but for the import of the compiler, which takes a
        second.
        """
        for function in functions:
            marks: Any = function
            marks._torchdynamo_disable = True
            marks._torchdynamo_disable_msg = "tensorlens looks at memory as it is"
        try:
            from torch._C._dynamo import eval_frame

            skip = eval_frame._FrameExecStrategy(
                eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP
            )
            for function in functions:
                eval_frame.set_code_exec_strategy(function.__code__, skip)
        except (ImportError, AttributeError):
            # before torch 2.7 the marks alone have to do
            return

    def watch(self) -> Callable[[], None]:
        """Count host memory and note which line allocates it, until what is returned is called.

        Raises:
            UsageError: ``TENSORLENS_COUNTER`` asks for a counter that cannot be had.
        """
        from tensorlens.frameworks.torch.census.watching import watch

        return watch()

    def census(self, roots: Sequence[Root]) -> Findings:
        """Return every live tensor by name, and the ledger of each device."""
        from tensorlens.frameworks.torch.census.take import take

        return take(roots)

    def record(self, options: RecordOptions) -> Recorder:
        """Record every allocation and free from now on.

        Raises:
            UsageError: nothing can be recorded here; the text says why.
        """
        from tensorlens.frameworks.torch.recorder.devices import start

        return start(options)

    def follow(self) -> Steps:
        """Follow a loop's steps from now on.

        Raises:
            UsageError: ``TENSORLENS_COUNTER`` asks for a counter that cannot be had.
        """
        from tensorlens.frameworks.torch.steps import TorchSteps

        return TorchSteps()

    def when_stepped(self, act: Callable[[], None]) -> Callable[[], None]:
        """Call ``act`` after each step of the program's first optimizer; return what ends that."""
        from tensorlens.frameworks.torch.optimizer_steps import OptimizerSteps

        return OptimizerSteps(act).close

    def pinned(self) -> int:
        """Return the bytes of page-locked memory handed out, CUDA being in use; else UNKNOWN."""
        from torch import cuda

        figures = getattr(cuda, "host_memory_stats", None)
        if figures is None or not cuda.is_initialized():
            return UNKNOWN
        return int(figures().get("active_bytes.current", UNKNOWN))

    def failed_request(self, error: BaseException) -> Request | None:
        """Return what was asked for when ``error`` is a failed allocation, else None."""
        from tensorlens.frameworks.torch.failures import failed_request

        return failed_request(error)

    def graphs_kept(self) -> Sequence[KeptGraph]:
        """Return the parts of autograd's graph that keep something, oldest first."""
        from tensorlens.frameworks.torch.graphs_kept import graphs_kept

        return graphs_kept()

    def notes(self) -> Sequence[str]:
        """Return the line that says why host memory is counted by a fallback, if it is."""
        from tensorlens.frameworks.torch import cpu

        reason = cpu.fallback_reason()
        return [] if reason is None else [reason]


def _compiler_of(function: Any) -> str | None:
    kind = type(function)
    if issubclass(kind, _types("torch._dynamo.eval_frame", "OptimizedModule")):
        return "torch.compile"
    if issubclass(kind, _types("torch.jit._trace", "TracedModule")):
        return "torch.jit.trace"
    if issubclass(kind, _types("torch.jit", "ScriptModule", "ScriptFunction")):
        return "torch.jit.script"
    if issubclass(kind, _types("torch._C", "ScriptMethod")):
        return "torch.jit.script"
    marks = _attributes(function)
    # torch.compiler.disable() wraps too, to the opposite effect
    if "_torchdynamo_orig_callable" in marks and not marks.get("_torchdynamo_disable"):
        return "torch.compile"
    # Module.compile() leaves the type as it is
    return "torch.compile" if marks.get("_compiled_call_impl") is not None else None


def _types(module: str, *names: str) -> tuple[type, ...]:
    """Return those of a module's classes that exist, without importing it."""
    found = (getattr(sys.modules.get(module), name, None) for name in names)
    return tuple(item for item in found if isinstance(item, type))


def _attributes(item: Any) -> dict[str, Any]:
    """Return what ``item`` itself holds, without asking its ``__getattr__``."""
    try:
        attributes = object.__getattribute__(item, "__dict__")
    except AttributeError:
        return {}
    return attributes if type(attributes) is dict else {}


def _wrapped_by(function: Any) -> Any:
    if isinstance(function, (types.MethodType, staticmethod, classmethod)):
        return function.__func__
    if isinstance(function, (functools.partial, functools.partialmethod)):
        return function.func
    if isinstance(function, property):
        return function.fget
    return _attributes(function).get("__wrapped__")
