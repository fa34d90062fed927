"""Estimates of Keras models beside what TensorFlow's CPU allocator hands out to the same steps.

`python -m tests.benchmarks.accuracy_keras` prints both. Steps of a graph differ from one to the
next, as operations that are ready together run in no fixed order, and from one process to the
next, as some of that order depends on addresses: the median of thirty steps is compared, where
they lie far apart that of thirty in each of seven processes, and the lowest and highest are told.
"""

import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from typing import Any

import tensorflow  # noqa: F401 - the counter looks for it
from tabulate import tabulate

import tensorlens
from tests.tensorflow.estimate_models import MODELS, loss, measured

_STEPS = {"graph": 31, "eager": 4}
_FAR_APART = 1.05
_PROCESSES = 7


def _measured(name: str, optimizer: str, mode: str) -> list[int]:
    return measured(MODELS[name], optimizer, mode == "eager", _STEPS[mode])


def _peaks(name: str, optimizer: str, mode: str) -> list[int]:
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        peaks = pool.submit(_measured, name, optimizer, mode).result()
        if max(peaks) > _FAR_APART * min(peaks):
            for _ in range(_PROCESSES - 1):
                peaks += pool.submit(_measured, name, optimizer, mode).result()
    return peaks


def main() -> None:
    """Print the table."""
    rows: list[list[Any]] = []
    for name, make in MODELS.items():
        for optimizer in ("sgd", "adam"):
            for mode in _STEPS:
                peaks = _peaks(name, optimizer, mode)
                model, batch = make()
                begun = time.process_time()
                found = tensorlens.estimate(
                    model,
                    batch_size=batch,
                    optimizer=optimizer,
                    loss=loss(),
                    run_eagerly=mode == "eager",
                    device="cpu",
                )
                took = time.process_time() - begun
                middle = median(peaks)
                rows.append(
                    [
                        name,
                        optimizer,
                        mode,
                        f"{found.peak_allocated:,}",
                        f"{int(middle):,}",
                        f"{found.peak_allocated / middle - 1:+.2%}",
                        f"{min(peaks):,} to {max(peaks):,}",
                        f"{took:.1f} s",
                    ]
                )
    headers = ["Model", "Optimizer", "Mode", "Estimated", "Measured", "Off", "Steps", "Took"]
    print(tabulate(rows, headers, disable_numparse=True))


if __name__ == "__main__":
    main()
