"""A recording of TensorFlow's CPU allocator."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from tensorlens.frameworks.base import CensusRoot, Recorder, RecordOptions
from tensorlens.frameworks.host.allocator import NativeAllocator
from tensorlens.frameworks.host.allocator_log import NativeRecorder
from tensorlens.frameworks.host.recorder import (
    HostRecorder,
    LogParts,
    ModulePath,
    Moment,
)
from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.keras.names import layer_path
from tensorlens.frameworks.registry import when_imported
from tensorlens.frameworks.tensorflow import cpu
from tensorlens.frameworks.tensorflow.census.findings import census
from tensorlens.frameworks.tensorflow.eager_gradients import EagerGradients
from tensorlens.frameworks.tensorflow.graphs.recorded_nodes import GraphOrigins
from tensorlens.heap import instances
from tensorlens.records.logs.events import EventLog
from tensorlens.records.tensors import TensorTable

_LAYERS = "keras.src.layers.layer"


@functools.cache
def _recorder(allocator: NativeAllocator) -> NativeRecorder:
    """Return the only recorder of an allocator."""

    def follow_layers() -> None:
        # the method that calls every layer, without its decorators
        function: Any = inspect.unwrap(vars(kinds.layer())["__call__"])
        allocator.library.tl_module_call(id(function.__code__))

    recorder = NativeRecorder(allocator)
    # a recording may begin before Keras is imported
    when_imported(_LAYERS, follow_layers)
    return recorder


def module_paths(roots: Sequence[CensusRoot] = ()) -> ModulePath:
    """Return a function that maps the address and type name of a living layer to its path."""
    paths = {
        (id(layer), type(layer).__name__): layer_path(layer) for layer in instances(kinds.layer())
    }
    return lambda address, kind: paths.get((address, kind))


def start(options: RecordOptions) -> Mapping[str, Recorder]:
    """Start recording TensorFlow's CPU allocator.

    Raises:
        NativeUnavailable: there is no native counter, or no stacks on this Python.
    """
    return {"tensorflow": TensorflowHostRecorder(options, _recorder(cpu.recordable()))}


class TensorflowHostRecorder(HostRecorder):
    """Recorder of TensorFlow's CPU allocator, with what graphs and tapes tell of its events."""

    source = cpu.TensorflowAllocator.source

    def __init__(self, options: RecordOptions, native: NativeRecorder) -> None:
        self._gradients, self._origins = EagerGradients(native.thread_now), GraphOrigins()
        super().__init__(options, native)

    def _watch(self) -> Callable[[], None]:
        with ExitStack() as undo:
            for start in (cpu.watch, self._gradients.start, self._origins.start):
                undo.callback(start())
            started = undo.pop_all()
        return started.close

    def _look(self, roots: Sequence[CensusRoot], moment: Moment) -> tuple[TensorTable, ModulePath]:
        # paths are read at the end alone: modules that are gone by then have none
        path = module_paths(roots) if moment == "end" else lambda address, kind: None
        return census(roots).tensors, path

    def _module_paths(self, roots: Sequence[CensusRoot]) -> ModulePath:
        return module_paths(roots)

    def _amend(self, log: EventLog, parts: LogParts) -> None:
        self._origins.amend(log, parts)
        self._gradients.amend(log, parts)
