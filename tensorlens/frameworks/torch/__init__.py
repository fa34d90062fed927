"""The adapter of torch: counts, names and records memory."""

from __future__ import annotations

from tensorlens.frameworks import base
from tensorlens.frameworks.base import TORCH, deferred
from tensorlens.frameworks.compilers import compiler
from tensorlens.lazy import attach


class Adapter(base.Adapter):
    """The adapter of torch.

    Raises:
        UsageError: this torch is too old.
    """

    name = "torch"
    words = TORCH
    cpu_counter = deferred("tensorlens.frameworks.torch.cpu:cpu_counter")
    has_accelerators = deferred("tensorlens.frameworks.torch.accelerators:has_accelerators")
    used_devices = deferred("tensorlens.frameworks.torch.accelerators:used_devices")
    device_counter = deferred("tensorlens.frameworks.torch.accelerators:device_counter")
    device_name = deferred("tensorlens.frameworks.torch.accelerators:device_name")
    compiled_by = deferred("tensorlens.frameworks.torch.compilers:compiled_by")
    forward_of = deferred("tensorlens.frameworks.torch.census.names.naming:forward_of")
    watch_compiler = deferred("tensorlens.frameworks.torch.compilers:TorchCompilerWatch")
    compiled_codes = deferred("tensorlens.frameworks.torch.compilers:compiled_codes")
    skip_code = deferred("tensorlens.frameworks.torch.compilers:skip")
    keep_compilers_out = deferred("tensorlens.frameworks.torch.compilers:keep_compilers_out")
    watch = deferred("tensorlens.frameworks.torch.cpu:watch")
    census = deferred("tensorlens.frameworks.torch.census.findings:census")
    record = deferred("tensorlens.frameworks.torch.recorder:start")
    follow = deferred("tensorlens.frameworks.torch.leaks.loop_steps:TorchSteps")
    when_stepped = deferred("tensorlens.frameworks.torch.optimizer_steps:when_stepped")
    pinned = deferred("tensorlens.frameworks.torch.accelerators:pinned")
    failed_request = deferred("tensorlens.frameworks.torch.failures:failed_request")
    graphs_kept = deferred("tensorlens.frameworks.torch.census.graph:graphs_kept")
    notes = deferred("tensorlens.frameworks.torch.cpu:notes")

    def __init__(self) -> None:
        from tensorlens.frameworks.torch.native import check_release

        check_release()
        import torch

        compiler.is_tracing = torch.compiler.is_compiling


attach(
    __name__,
    {
        "accelerators": ("Accelerators",),
        "backends": ("Cuda",),
        "census.cuda_blocks": (),
        "census.device_ledger": ("device_ledgers",),
        "census.undisturbed": (),
        "census.findings": (),
        "census.graph": ("graphs_kept",),
        "census.live_tensors": (),
        "census.names.naming": ("FirstSeenOrder",),
        "census.scan": ("NativeScan", "IRREGULAR", "REQUIRES_GRAD", "Scan", "open_scan"),
        "census.scan_python": ("PythonScan",),
        "cpu": ("adopt_living",),
        "data_loader": (),
        "failures": ("failed_request",),
        "leaks.holdings": ("Holdings",),
        "leaks.loop_steps": (),
        "native": ("COUNTER", "TorchAllocator", "installed_release", "level_reader"),
    },
)
