"""A recording of TensorFlow's CPU allocator, with the Keras layers that frames call."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tensorlens.frameworks.base import CensusRoot, Recorder, RecordOptions
from tensorlens.frameworks.host.allocator import NativeAllocator
from tensorlens.frameworks.host.allocator_log import NativeRecorder
from tensorlens.frameworks.host.recorder import (
    Amendment,
    FrameworkHooks,
    HostRecorder,
    ModulePath,
    Moment,
    MomentCensus,
    NameSources,
    unknown_path,
)
from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.keras.layers import layer_path
from tensorlens.frameworks.registry import when_imported
from tensorlens.frameworks.tensorflow import cpu
from tensorlens.frameworks.tensorflow.observation import watch
from tensorlens.heap import instances
from tensorlens.records.events import GRAPH_CALL, EventLog

_LAYERS = "keras.src.layers.layer"


class TensorflowRecorder(NativeRecorder):
    """Records spans of what TensorFlow's tapped allocator hands out; spans may overlap."""

    def __init__(self, allocator: NativeAllocator) -> None:
        super().__init__(allocator)
        # a recording may begin first: Keras is imported when its first attribute is read
        when_imported(_LAYERS, self._follow_layers)

    def _follow_layers(self) -> None:
        # one method calls all layers, below its decorators
        function: Any = inspect.unwrap(vars(kinds.layer())["__call__"])
        self._library.tl_module_call(id(function.__code__))


def module_paths(roots: Sequence[CensusRoot] = ()) -> ModulePath:
    """Return what gives the path of a layer that lives now, by its address and type's name."""
    paths = {
        (id(layer), type(layer).__name__): layer_path(layer) for layer in instances(kinds.layer())
    }
    return lambda address, kind: paths.get((address, kind))


_recorder = functools.cache(TensorflowRecorder)
"""Returns the recorder of an allocator, of which there is one."""


def start(options: RecordOptions) -> Recorder:
    """Record what TensorFlow's CPU allocator hands out from now on.

    Raises:
        NativeUnavailable: there is no native counter, or no stacks on this Python.
    """
    from tensorlens.frameworks.tensorflow.attribution.eager_gradients import EagerGradients
    from tensorlens.frameworks.tensorflow.attribution.graph_lines import GraphLines

    native = _recorder(cpu.recordable())
    gradients, lines = EagerGradients(native.thread_now), GraphLines()

    def observe() -> Callable[[], None]:
        ends = [watch(), gradients.start(), lines.start()]

        def end() -> None:
            for each in ends:
                each()

        return end

    def amend(log: EventLog, amendment: Amendment) -> None:
        lines.amend(log)
        gradients.amend(log, amendment)

    hooks = FrameworkHooks(cpu.CpuCounter.source, observe, NameSources(_look, module_paths), amend)
    recorder = HostRecorder(options, native, hooks)
    # whoever follows calls must not keep a recording that nobody ends
    reference = weakref.ref(recorder)
    lines.called = lambda: _note(reference)
    return recorder


def _note(reference: weakref.ref[HostRecorder]) -> None:
    recorder = reference()
    if recorder is not None:
        recorder.note(GRAPH_CALL)


def _look(roots: Sequence[CensusRoot], moment: Moment) -> MomentCensus:
    from tensorlens.frameworks.tensorflow.census.findings import take

    # modules that are gone at the end have no paths
    return MomentCensus(
        take(roots).tensors, module_paths(roots) if moment == "end" else unknown_path
    )
