"""Starts the recorders of all devices, and reads them as one."""

from __future__ import annotations

from dataclasses import replace

from tensorlens.frameworks.base import Recorder, RecordOptions
from tensorlens.frameworks.host.recorder import HostRecorder
from tensorlens.frameworks.torch.recorder import cuda
from tensorlens.frameworks.torch.recorder.cpu import host_recorder
from tensorlens.native.build import NativeUnavailable
from tensorlens.records.events import EventLog
from tensorlens.records.origin import Origin, merge_origins


def start(options: RecordOptions) -> Recorder:
    """Record every device that can be recorded.

    Raises:
        NativeUnavailable: none can; the text says why.
    """
    host, note = None, None
    try:
        host = host_recorder(options)
    except NativeUnavailable as error:
        if not cuda.is_possible():
            raise
        note = str(error)
    if host is not None and not cuda.is_possible():
        return host
    try:
        return _Recorders(host, cuda.CudaRecorder(options), note)
    except BaseException:
        if host is not None:
            host.read(True)
        raise


class _Recorders:
    """The recorders of the CPU and of CUDA, read as one log."""

    def __init__(
        self, host: HostRecorder | None, accelerator: cuda.CudaRecorder, note: str | None
    ) -> None:
        self._host = host
        self._accelerator = accelerator
        self._note = note

    def mark(self, name: str) -> None:
        """Give this moment a name."""
        (self._host or self._accelerator).mark(name)

    def read(self, end: bool) -> tuple[EventLog, Origin]:
        """Return the log so far; ``end`` stops recording."""
        try:
            accelerator = self._accelerator.read(end)
        finally:
            host = self._host.read(end) if self._host is not None else None
        log, origin = merge_origins([each for each in (host, accelerator) if each is not None])
        return log, replace(origin, notes=(*origin.notes, *filter(None, (self._note,))))
