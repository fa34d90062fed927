"""What profilers answer to the same questions about one step: each in a process of its own.

    python -m tests.benchmarks.answers <tool>

prints, as its last line, JSON of question to the bytes and a remark. A question that is missing is
one that the tool does not answer. Each is asked as its documentation says, with no arithmetic of
ours but sums and the change of units.
"""

import contextlib
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks import known_step
from tests.benchmarks.known_step import MIB, STEPS

Answers = dict[str, tuple[float, str]]
"""Question to bytes and remark."""
FILE = known_step.__file__


def tensorlens() -> Answers:
    """Ask this package."""
    import tensorlens

    model, optimizer, inputs, target = known_step.parts()
    step = known_step.step_of(model, optimizer, inputs, target)
    step()
    profiler = tensorlens.LineProfiler(step)
    with profiler:
        step()
    peaks = profiler.result().to_pandas()
    peak = peaks.loc[peaks["peak"].idxmax()]
    with tensorlens.record() as recording:
        step()
    roles = {str(role): nbytes for role, nbytes in recording.peak("cpu").by_role.items()}
    tensors = tensorlens.MemReporter(model, optimizer).snapshot().to_pandas()
    sizes = tensors.groupby("role")["nbytes"].sum()
    history: list[torch.Tensor] = []
    leaky = known_step.leaky_step_of(model, optimizer, inputs, target, history)
    leak = tensorlens.find_leaks(lambda _: leaky(), steps=6, warmup=2).leaks[0]
    estimate = tensorlens.estimate(known_step.make_step, device="cpu")
    return {
        "line": (peak["peak"], f"line {peak['lineno']}, all that is live while it runs"),
        "parameters": (sizes["parameter"], ""),
        "gradients": (sizes["gradient"], ""),
        "slots": (sizes["optimizer"], ""),
        "activations": (roles["activation"], ""),
        "peak": (recording.peak("cpu").bytes, ""),
        "leak": (leak.bytes_per_step, f"line {leak.born.lineno}, a step"),
        "estimate": (estimate.peak_allocated, ""),
    }


def mem_tracker() -> Answers:
    """Ask torch's MemTracker: of a real step, and of one on fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    peak, current = _tracked()
    with FakeTensorMode():
        ahead, _ = _tracked()
    return {
        "parameters": (current["Parameter"], ""),
        "gradients": (current["Gradient"], ""),
        "slots": (current["Optstate"], ""),
        "activations": (peak["Activation"], ""),
        "peak": (peak["Total"], ""),
        "estimate": (ahead["Total"], "under FakeTensorMode"),
    }


def _tracked() -> tuple[dict[str, int], dict[str, int]]:
    """Return the bytes by kind at the peak of the second step, and after it."""
    from torch.distributed._tools.mem_tracker import MemTracker

    parts = known_step.parts()
    tracker = MemTracker()
    tracker.track_external(*parts)
    step = known_step.step_of(*parts)
    with tracker:
        step()
        tracker.reset_mod_stats()
        step()
        found = [tracker.get_tracker_snapshot(kind) for kind in ("peak", "current")]
    peak, current = (
        {getattr(key, "value", key): nbytes for key, nbytes in each[torch.device("cpu")].items()}
        for each in found
    )
    return peak, current


def torch_profiler() -> Answers:
    """Ask torch.profiler: its memory timeline by category."""
    from torch.profiler._memory_profiler import _CATEGORY_TO_COLORS, MemoryProfileTimeline

    step = known_step.make_step()
    step()
    options = {"profile_memory": True, "with_stack": True, "record_shapes": True}
    with torch.profiler.profile(**options) as profiler:
        step()
    timeline = MemoryProfileTimeline(profiler._memory_profile())
    _, sizes = timeline._coalesce_timeline("cpu")
    names = [getattr(category, "name", "unknown") for category in _CATEGORY_TO_COLORS]
    # the first of its columns is what is below all categories
    columns = [dict(zip(names, each[1:], strict=True)) for each in sizes]
    peak = max(columns, key=lambda each: sum(each.values()))
    end = columns[-1]
    return {
        "parameters": (end["PARAMETER"], "category PARAMETER"),
        "gradients": (end["GRADIENT"], "category GRADIENT"),
        "slots": (end["OPTIMIZER_STATE"], "category OPTIMIZER_STATE"),
        "activations": (peak["ACTIVATION"], "category ACTIVATION"),
        "peak": (sum(peak.values()), ""),
    }


def torchinfo() -> Answers:
    """Ask torchinfo, which runs a forward pass."""
    from torchinfo import summary

    found = summary(known_step.Net(), input_size=(known_step.BATCH, known_step.WIDTH), verbose=0)
    total = found.total_input + found.total_output_bytes + found.total_param_bytes
    return {
        "parameters": (found.total_param_bytes, ""),
        "activations": (found.total_output_bytes, "twice the outputs of layers with weights"),
        "estimate": (total, "input + passes + parameters"),
    }


def memray() -> Answers:
    """Ask memray for the step's high watermark, and for what is left of the step that leaks."""
    known_step.make_step()()
    own = _memray_rows(known_step.make_step, "get_high_watermark_allocation_records")
    history: list[torch.Tensor] = []
    left = _memray_rows(
        lambda: known_step.leaky_step_of(*known_step.parts(), history),
        "get_leaked_allocation_records",
    )
    line, nbytes = max(own[0].items(), key=lambda each: each[1])
    leak, lost = max(left[0].items(), key=lambda each: each[1])
    return {
        "line": (nbytes, f"line {line}, what it allocated of the peak"),
        "peak": (own[1], "all of the process since the tracker began"),
        "leak": (lost / STEPS, f"line {leak}, bytes not freed at the end / {STEPS} steps"),
    }


def _memray_rows(make: Callable[[], Callable[[], None]], kind: str) -> tuple[dict[int, int], int]:
    """Return the bytes by line of the step, and the peak of the process."""
    from memray import FileReader, Tracker

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.bin"
        with Tracker(path):
            step = make()
            for _ in range(STEPS):
                step()
        reader = FileReader(path)
        rows: dict[int, int] = {}
        for record in getattr(reader, kind)(merge_threads=True):
            for _, file, line in record.stack_trace():
                if file == FILE:
                    rows[line] = rows.get(line, 0) + record.size
                    break
        return rows, reader.metadata.peak_memory


def scalene() -> Answers:
    """Ask Scalene for a whole run of the step that leaks."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        command = [sys.executable, "-m", "scalene", "run", "-o", str(path), FILE]
        subprocess.run([*command, "---", "leaky_step"], check=True, capture_output=True)
        found = json.loads(path.read_text())
    file = found["files"][FILE]
    line = max(file["lines"], key=lambda each: each["n_peak_mb"])
    answers: Answers = {
        "line": (line["n_peak_mb"] * MIB, f"line {line['lineno']}, what it allocated"),
        "peak": (found["max_footprint_mb"] * MIB, "largest footprint of the process, sampled"),
    }
    for place, leak in file["leaks"].items():
        speed = leak["velocity_mb_s"]
        answers["leak"] = (float("nan"), f"line {place} leaks, {speed:.2f} MB/s")
    return answers


def pytorch_memlab() -> Answers:
    """Ask pytorch_memlab's reporter, which needs no GPU; its line profiler does."""
    from tests.benchmarks.peers import _stubbed_cuda

    model, *others = known_step.parts()
    known_step.step_of(model, *others)()
    printed = io.StringIO()
    with _stubbed_cuda(), contextlib.redirect_stdout(printed):
        from pytorch_memlab import MemReporter

        MemReporter(model).report(verbose=True)
    rows = [line.split() for line in printed.getvalue().splitlines() if "weight" in line]
    rows = [row for row in rows if row[-1].endswith("M") and "->" not in row[0]]
    weights = _sum(row[-1] for row in rows if ".grad" not in row[0])
    gradients = _sum(row[-1] for row in rows if ".grad" in row[0])
    return {
        "parameters": (weights, "it multiplies bytes by the element size"),
        "gradients": (gradients, "" if gradients else "rows of gradients read 0.00B"),
    }


def _sum(sizes: Iterable[str]) -> float:
    return sum(float(size.removesuffix("M")) * MIB for size in sizes)


TOOLS: dict[str, tuple[Callable[[], Answers], str]] = {
    "tensorlens": (tensorlens, "tensorlens"),
    "MemTracker": (mem_tracker, "torch"),
    "torch.profiler": (torch_profiler, "torch"),
    "torchinfo": (torchinfo, "torchinfo"),
    "memray": (memray, "memray"),
    "Scalene": (scalene, "scalene"),
    "pytorch_memlab": (pytorch_memlab, "pytorch_memlab"),
}
"""Name to the function that asks, and the package."""


def main() -> None:
    """Ask one tool."""
    found: dict[str, Any] = TOOLS[sys.argv[1]][0]()
    print(json.dumps({key: (float(nbytes), remark) for key, (nbytes, remark) in found.items()}))


if __name__ == "__main__":
    main()
