"""What tensorlens asks of TensorFlow: counters, names, recordings and steps."""

from __future__ import annotations

import sys
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
    """TensorFlow, as :class:`tensorlens.frameworks.base.Framework` describes it."""

    name = "tensorflow"

    def __init__(self) -> None:
        from tensorlens.frameworks.tensorflow import building, counters, graph_runs

        compiler.builds(building.is_building)
        compiler.as_called = building.as_called
        compiler.when_run = graph_runs.when_run
        compiler.follow_runs = graph_runs.follow
        self._counters = counters

    def cpu_counter(self) -> Counter:
        """Return the counter of host memory: TensorFlow's CPU allocator, or a fallback.

        Raises:
            UsageError: ``TENSORLENS_COUNTER`` asks for one that cannot be had.
        """
        from tensorlens.frameworks.tensorflow import cpu

        return cpu.cpu_counter()

    def has_accelerators(self) -> bool:
        """Return whether this TensorFlow was built for any accelerator."""
        return self._counters.has_accelerators()

    def used_devices(self) -> Sequence[str]:
        """Return the names of the accelerators in use so far, initialising none."""
        return self._counters.used_devices()

    def device_counter(self, device: str) -> Counter:
        """Return the counter of an accelerator.

        Raises:
            DeviceError: no such device here.
        """
        return self._counters.device_counter(device)

    def device_name(self, device: Any) -> str:
        """Return torch's full spelling of a device: ``/GPU:0`` and ``gpu`` are ``cuda:0``.

        Raises:
            DeviceError: it surely does not exist here.
        """
        return self._counters.device_name(device)

    def compiled_by(self, function: Any) -> str | None:
        """Return ``tf.function`` or ``tf.function(jit_compile=True)``, or None."""
        from tensorlens.frameworks.tensorflow.functions import compiled_by

        return compiled_by(function)

    def follow_code(self, code: CodeType) -> TracedCode | None:
        """Return what follows the graph functions whose nodes the lines of ``code`` made."""
        from tensorlens.frameworks.tensorflow.traced_lines import follow_code

        return follow_code(code)

    def forward_of(self, item: Any) -> str | None:
        """Return ``call`` when ``item`` is a Keras layer, ``__call__`` for a ``tf.Module``."""
        from tensorlens.frameworks.tensorflow.functions import forward_of

        return forward_of(item)

    def keep_compilers_out(self, functions: Sequence[Callable[..., Any]]) -> None:
        """Let autograph call these as they are, and not convert them."""
        from tensorlens.frameworks.tensorflow.functions import keep_autograph_out

        keep_autograph_out(functions)

    def watch(self) -> Callable[[], None]:
        """Count host memory and note which line allocates it, until what is returned is called.

        Raises:
            UsageError: ``TENSORLENS_COUNTER`` asks for a counter that cannot be had.
        """
        from tensorlens.frameworks.tensorflow.watching import watch

        return watch()

    def census(self, roots: Sequence[Root]) -> Findings:
        """Return every live tensor by name, and the ledger of each device."""
        from tensorlens.frameworks.tensorflow.census.take import take

        return take(roots)

    def record(self, options: RecordOptions) -> Recorder:
        """Record every allocation and free from now on.

        Raises:
            UsageError: nothing can be recorded here; the text says why.
        """
        from tensorlens.frameworks.tensorflow.recorder import start

        return start(options)

    def follow(self) -> Steps:
        """Follow a loop's steps from now on.

        Raises:
            UsageError: ``TENSORLENS_COUNTER`` asks for a counter that cannot be had.
        """
        from tensorlens.frameworks.tensorflow.steps import TensorflowSteps

        return TensorflowSteps()

    def when_stepped(self, act: Callable[[], None]) -> Callable[[], None]:
        """Call ``act`` after each step of the program's first optimizer; return what ends that."""
        from tensorlens.frameworks.tensorflow.optimizer_steps import OptimizerSteps

        return OptimizerSteps(act).close

    def pinned(self) -> int:
        """TensorFlow does not tell its page-locked memory."""
        return UNKNOWN

    def failed_request(self, error: BaseException) -> Request | None:
        """Return what was asked for when ``error`` is a failed allocation, else None."""
        from tensorlens.frameworks.tensorflow.failures import failed_request

        return failed_request(error)

    def graphs_kept(self) -> Sequence[KeptGraph]:
        """TensorFlow's tapes keep no graph that could be walked."""
        return ()

    def notes(self) -> Sequence[str]:
        """Return the line that says why host memory is counted by a fallback, if it is."""
        if "tensorlens.frameworks.tensorflow.cpu" not in sys.modules:
            return []
        from tensorlens.frameworks.tensorflow import cpu

        reason = cpu.fallback_reason()
        return [] if reason is None else [reason]
