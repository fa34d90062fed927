"""TensorFlow: counts, names and records its memory."""

from __future__ import annotations

from tensorlens.frameworks import base
from tensorlens.frameworks.base import TENSORFLOW, deferred
from tensorlens.frameworks.compilers import compiler
from tensorlens.lazy import attach


class Adapter(base.Adapter):
    """Answers of TensorFlow."""

    name = "tensorflow"
    words = TENSORFLOW
    cpu_counter = deferred("tensorlens.frameworks.tensorflow.cpu:cpu_counter")
    has_accelerators = deferred("tensorlens.frameworks.tensorflow.counters:has_accelerators")
    used_devices = deferred("tensorlens.frameworks.tensorflow.counters:used_devices")
    device_counter = deferred("tensorlens.frameworks.tensorflow.counters:device_counter")
    device_name = deferred("tensorlens.frameworks.tensorflow.counters:device_name")
    compiled_by = deferred("tensorlens.frameworks.tensorflow.tf_functions:compiled_by")
    follow_code = deferred("tensorlens.frameworks.tensorflow.graphs.profiled_lines:follow_code")
    forward_of = deferred("tensorlens.frameworks.tensorflow.tf_functions:forward_of")
    keep_compilers_out = deferred(
        "tensorlens.frameworks.tensorflow.tf_functions:keep_autograph_out"
    )
    watch = deferred("tensorlens.frameworks.tensorflow.cpu:watch")
    census = deferred("tensorlens.frameworks.tensorflow.census.findings:census")
    record = deferred("tensorlens.frameworks.tensorflow.recorder:start")
    follow = deferred("tensorlens.frameworks.tensorflow.loop_steps:TensorflowSteps")
    when_stepped = deferred("tensorlens.frameworks.tensorflow.hooks:when_stepped")
    failed_request = deferred("tensorlens.frameworks.tensorflow.failures:failed_request")
    notes = deferred("tensorlens.frameworks.tensorflow.cpu:notes")

    def __init__(self) -> None:
        from tensorlens.frameworks.tensorflow import hooks, tf_functions

        compiler.is_building = tf_functions.is_building
        compiler.as_called = tf_functions.as_called
        compiler.when_run = hooks.when_run
        compiler.follow_runs = hooks.follow_tf_functions


attach(
    __name__,
    {
        "census.findings": (),
        "census.named_rows": (),
        "census.tensor_reader": (),
        "counters": ("torch_device_name",),
        "cpu": ("TensorflowAllocator", "cpu_counter"),
        "failures": ("failed_request",),
        "graphs.functions": ("Functions", "plain_name"),
        "graphs.nodes": ("Nodes", "plain_names"),
        "graphs.profiled_lines": (),
        "hooks": ("follow_graph_calls", "not_followed", "when_stepped"),
    },
)
