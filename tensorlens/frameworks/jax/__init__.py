"""What tensorlens asks of JAX, on its own or below Keras: counters and names of live arrays.

Nothing here imports JAX, or makes a device that the program has not made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from tensorlens.errors import UsageError
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
    """JAX, as :class:`tensorlens.frameworks.base.Framework` describes it."""

    name = "jax"

    def __init__(self) -> None:
        from tensorlens.frameworks.jax import counters
        from tensorlens.frameworks.jax.functions import is_building

        compiler.builds(is_building)
        self._counters = counters

    def cpu_counter(self) -> Counter:
        """Return the counter of host memory: the buffers of live arrays.

        Raises:
            UsageError: ``TENSORLENS_COUNTER`` asks for one that cannot be had.
        """
        return self._counters.cpu_counter()

    def has_accelerators(self) -> bool:
        """Return whether JAX has any accelerator, or may still make one."""
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
        """Return torch's full spelling of a device: ``gpu:0`` is ``cuda:0``.

        Raises:
            DeviceError: it surely does not exist here.
        """
        return self._counters.device_name(device)

    def compiled_by(self, function: Any) -> str | None:
        """Return ``jax.jit`` for what it made, else None."""
        from tensorlens.frameworks.jax.functions import compiled_by

        return compiled_by(function)

    def follow_code(self, code: CodeType) -> TracedCode | None:
        """XLA does not tell which line a buffer of a compiled function is of."""
        return None

    def forward_of(self, item: Any) -> str | None:
        """Return ``call`` when ``item`` is a Keras layer, else None."""
        from tensorlens.frameworks.jax.functions import forward_of

        return forward_of(item)

    def keep_compilers_out(self, functions: Sequence[Callable[..., Any]]) -> None:
        """JAX traces what is called, and what is called here computes nothing with it."""

    def watch(self) -> Callable[[], None]:
        """JAX notes by itself which line makes an array."""
        return _nothing

    def census(self, roots: Sequence[Root]) -> Findings:
        """Return every live array by name, and the ledger of each device."""
        from tensorlens.frameworks.jax.census.take import take

        return take(roots)

    def record(self, options: RecordOptions) -> Recorder:
        """JAX does not tell of single allocations.

        Raises:
            UsageError: always.
        """
        raise UsageError("JAX tells of no single allocation, so nothing of it can be recorded")

    def follow(self) -> Steps:
        """Follow a loop's steps from now on.

        Raises:
            UsageError: ``TENSORLENS_COUNTER`` asks for a counter that cannot be had.
        """
        from tensorlens.frameworks.jax.steps import JaxSteps

        return JaxSteps()

    def when_stepped(self, act: Callable[[], None]) -> Callable[[], None]:
        """An optimizer steps inside of a compiled function, of which nobody is told."""
        return _nothing

    def pinned(self) -> int:
        """JAX does not tell its page-locked memory."""
        return UNKNOWN

    def failed_request(self, error: BaseException) -> Request | None:
        """Return what was asked for when ``error`` is a failed allocation, else None."""
        from tensorlens.frameworks.jax.failures import failed_request

        return failed_request(error)

    def graphs_kept(self) -> Sequence[KeptGraph]:
        """JAX keeps no graph that could be walked."""
        return ()

    def notes(self) -> Sequence[str]:
        """Return the line on what XLA has planned for compiled functions, which no counter has."""
        from tensorlens.frameworks.jax.programs import note

        found = note()
        return () if found is None else (found,)


def _nothing() -> None:
    """End nothing."""
