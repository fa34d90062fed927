"""A recording of TensorFlow's CPU allocator while it runs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

from tensorlens.frameworks.base import Recorder, RecordOptions, Root
from tensorlens.frameworks.host.naming import Moment, NameSources, Sight, unknown_path
from tensorlens.frameworks.host.recorder import Amendment, FrameworkHooks, HostRecorder
from tensorlens.frameworks.tensorflow import cpu
from tensorlens.frameworks.tensorflow.attribution.module_calls import (
    TensorflowRecorder,
    module_paths,
)
from tensorlens.frameworks.tensorflow.observation import watch
from tensorlens.native.build import NativeUnavailable
from tensorlens.records.events import GRAPH_CALL, EventLog

_recorder: TensorflowRecorder | None = None


def start(options: RecordOptions) -> Recorder:
    """Record what TensorFlow's CPU allocator hands out from now on.

    Raises:
        NativeUnavailable: there is no native counter, or no stacks on this Python.
    """
    from tensorlens.frameworks.tensorflow.attribution.eager_gradients import EagerGradients
    from tensorlens.frameworks.tensorflow.attribution.graph_lines import GraphLines

    native = _native()
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


def _native() -> TensorflowRecorder:
    global _recorder
    counter = cpu.cpu_counter()
    if not isinstance(counter, cpu.CpuCounter):
        raise NativeUnavailable(
            f"host memory cannot be recorded: it is counted by {counter.source}"
            f" ({cpu.fallback_reason() or 'TENSORLENS_COUNTER asks for it'})"
        )
    if _recorder is None:
        _recorder = TensorflowRecorder(counter.allocator)
    return _recorder


def _look(roots: Sequence[Root], moment: Moment) -> Sight:
    from tensorlens.frameworks.tensorflow.census.findings import take

    # modules that are gone at the end have no paths
    return Sight(take(roots).tensors, module_paths(roots) if moment == "end" else unknown_path)
