"""Estimates of Keras models beside what TensorFlow's CPU allocator hands out to the same steps.

`python -m tests.benchmarks.accuracy_keras` prints both. Steps of a graph differ from one to the
next, as operations that are ready together run in no fixed order, and from one process to the
next, as some of that order depends on addresses. The median of thirty steps is compared; where
they lie far apart, that of thirty in each of seven processes. The lowest and highest are told.
"""

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import median

from tabulate import tabulate

_STEPS = {"graph": 31, "graph, 1 thread": 31, "eager": 4}
_MODELS = {
    **dict.fromkeys(("MLP", "wide MLP", "2-D CNN", "3-D CNN"), ("graph", "eager")),
    # with one thread between operations the steps of a loop are alike
    "LSTM": ("graph", "graph, 1 thread", "eager"),
    "transformer": ("graph", "eager"),
}
_FAR_APART = 1.05
_PROCESSES = 7


@dataclass(frozen=True, slots=True)
class Row:
    """One process's figures, in bytes and seconds of its processor time."""

    peaks: list[int]
    estimated: int
    lower: int
    upper: int
    took: float


def run(name: str, optimizer: str, mode: str) -> Row:
    """Measure and estimate one model, in a process that has done nothing else."""
    import tensorflow as tf

    import tensorlens
    from tests.tensorflow.estimate_models import MODELS, loss, measured

    if mode == "graph, 1 thread":
        tf.config.threading.set_inter_op_parallelism_threads(1)
    eager = mode == "eager"
    peaks = measured(MODELS[name], optimizer, eager, _STEPS[mode])
    model, batch = MODELS[name]()
    begun = time.process_time()
    found = tensorlens.estimate(
        model,
        batch_size=batch,
        optimizer=optimizer,
        loss=loss(),
        run_eagerly=eager,
        device="cpu",
    )
    took = time.process_time() - begun
    return Row(peaks, found.peak_allocated, found.lower, found.upper, took)


def _in_new_processes(name: str, optimizer: str, mode: str) -> Row:
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        row = pool.submit(run, name, optimizer, mode).result()
        if max(row.peaks) > _FAR_APART * min(row.peaks):
            for _ in range(_PROCESSES - 1):
                row.peaks.extend(pool.submit(run, name, optimizer, mode).result().peaks)
    return row


def main() -> None:
    """Print the table, of the models that are named or of all."""
    rows = []
    for name in sys.argv[1:] or _MODELS:
        for optimizer in ("sgd", "adam"):
            for mode in _MODELS[name]:
                row = _in_new_processes(name, optimizer, mode)
                middle = median(row.peaks)
                rows.append(
                    [
                        name,
                        optimizer,
                        mode,
                        f"{row.estimated:,}",
                        f"{int(middle):,}",
                        f"{row.estimated / middle - 1:+.2%}",
                        f"{min(row.peaks):,} to {max(row.peaks):,}",
                        f"{row.lower:,} to {row.upper:,}",
                        f"{row.took:.1f} s",
                    ]
                )
    headers = ["Model", "Optimizer", "Mode", "Estimated", "Measured", "Off", "Steps", "Bounds"]
    print(tabulate(rows, [*headers, "Took"], disable_numparse=True))


if __name__ == "__main__":
    main()
