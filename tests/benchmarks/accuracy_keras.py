"""Estimates of Keras models beside what TensorFlow's CPU allocator hands out to the same steps.

``python -m tests.benchmarks.accuracy_keras`` prints both, with one thread between operations, where
a step of one process is as the next one; ``--default-threads`` with as many as TensorFlow takes,
which run what is ready together in another order in every step. What depends on addresses is
another in every process: each row of a graph is that of several, and of steps after the hundredth,
when TensorFlow has learnt which kernels are short.
"""

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import median

from tabulate import tabulate

RECURRENT = ("LSTM", "GRU", "GRU both ways")
MODELS = ("MLP", "2-D CNN", "3-D CNN", *RECURRENT, "transformer")
_DEFAULT = "--default-threads"
_PROCESSES, _OF_LOOPS = 3, 11
"""Of each row; loops have an order of their own in nearly every one."""

_LEARNT = 95
_STEPS = {"graph": 20, "eager": 3}


@dataclass(frozen=True, slots=True)
class Row:
    """One process's figures, in bytes and seconds of its processor time."""

    peaks: list[int]
    estimated: int
    lower: int
    upper: int
    took: float


def run(name: str, optimizer: str, mode: str, threads: int) -> Row:
    """Measure and estimate one model, in a process that has done nothing else.

    Args:
        name: of the model.
        optimizer: by name.
        mode: ``graph`` or ``eager``.
        threads: between operations; 0: TensorFlow's default.
    """
    import tensorflow as tf

    import tensorlens
    from tests.tensorflow.estimate_models import MODELS, loss, measured

    tf.config.threading.set_inter_op_parallelism_threads(threads)
    eager = mode == "eager"
    steps = _STEPS[mode]
    peaks = measured(MODELS[name], optimizer, eager, steps + (1 if eager else _LEARNT))[-steps:]
    tf.keras.backend.clear_session()
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


def in_new_processes(name: str, optimizer: str, mode: str, by_default: bool) -> list[Row]:
    """Run it in processes of its own, one after the other."""
    count = _OF_LOOPS if name in RECURRENT else _PROCESSES
    if mode == "eager":
        count = 1
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        return [
            pool.submit(run, name, optimizer, mode, 0 if by_default else 1).result()
            for _ in range(count)
        ]


def main() -> None:
    """Print one of the tables, of the models that are named or of all."""
    by_default = _DEFAULT in sys.argv
    names = [each for each in sys.argv[1:] if each != _DEFAULT] or MODELS
    rows = []
    for name in names:
        for optimizer in ("sgd", "adam"):
            for mode in ("graph",) if by_default else ("graph", "eager"):
                found = in_new_processes(name, optimizer, mode, by_default)
                peaks = [peak for row in found for peak in row.peaks]
                estimated = median(row.estimated for row in found)
                middle = median(peaks)
                rows.append(
                    [
                        name,
                        optimizer,
                        mode,
                        f"{estimated:,}",
                        f"{int(middle):,}",
                        f"{estimated / middle - 1:+.2%}",
                        f"{min(peaks):,} to {max(peaks):,}",
                        f"{min(row.lower for row in found):,} to "
                        f"{max(row.upper for row in found):,}",
                        f"{max(row.took for row in found):.1f} s",
                    ]
                )
                print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    headers = ["Model", "Optimizer", "Mode", "Estimated", "Measured", "Off", "Steps", "Bounds"]
    print(tabulate(rows, [*headers, "Took"], disable_numparse=True))


if __name__ == "__main__":
    main()
