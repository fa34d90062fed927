"""Streams and events of ``torch.cuda``: torch's own, of a device that is not there."""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

import torch


class StreamBase(torch.Stream):  # type: ignore[misc]
    """Stands in for ``torch._C._CudaStreamBase``."""

    def __new__(
        cls,
        device: Any = None,
        priority: int = 0,
        *,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int | None = None,
        stream_ptr: int = 0,
    ) -> Any:
        """Make a stream of the current device's pool, or the one that the numbers name."""
        if stream_id is None and stream_ptr:
            stream_id, device_index, device_type = stream_ptr, torch.cuda.current_device(), 1
        if stream_id is not None:
            return super().__new__(
                cls, stream_id=stream_id, device_index=device_index, device_type=device_type
            )
        where = torch.cuda.current_device() if device is None else device
        return super().__new__(cls, device=torch.device("cuda", where), priority=priority)

    @property
    def cuda_stream(self) -> int:
        """The number of the stream, where a card would have a pointer."""
        return int(self.stream_id)

    @property
    def priority(self) -> int:
        """-1 for a stream of the pool of high priority, else 0."""
        return -1 if self.stream_id & 0b10101 == 0b00101 else 0

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the least and the greatest priority, as CUDA gives them."""
        return 0, -5


class EventBase(torch.Event):  # type: ignore[misc]
    """Stands in for ``torch._C._CudaEventBase``."""

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> Any:
        """Make an event."""
        return super().__new__(cls, device="cuda", enable_timing=True, blocking=blocking)

    def record(self, stream: Any = None) -> None:
        """Note the moment."""
        self._moment = time.perf_counter()
        super().record(stream)

    def elapsed_time(self, end_event: Any) -> float:
        """Return the milliseconds until another; never zero, as programs divide by it."""
        until = getattr(end_event, "_moment", 0.0)
        return max((until - getattr(self, "_moment", until)) * 1e3, 1e-3)

    @property
    def cuda_event(self) -> int:
        """The number of the event, where a card would have a pointer."""
        return id(self)


def install() -> None:
    """Make ``torch.cuda.Stream`` and ``torch.cuda.Event`` of these."""
    from torch.cuda import streams

    names = ("Stream", "ExternalStream", "Event")
    before = {getattr(streams, name): name for name in names}
    torch._C._CudaStreamBase, torch._C._CudaEventBase = StreamBase, EventBase
    importlib.reload(streams)
    for module_name, module in [*sys.modules.items()]:
        if module_name.partition(".")[0] != "torch" or module is streams:
            continue
        for name, value in [*getattr(module, "__dict__", {}).items()]:
            # by its own type: some module globals warn at every look
            if type(value) is type and value in before:
                setattr(module, name, getattr(streams, before[value]))
