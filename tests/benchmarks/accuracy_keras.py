"""Estimates of Keras models beside what TensorFlow's CPU allocator hands out to the same steps.

`python -m tests.benchmarks.accuracy_keras` prints both. Steps of a graph differ from one to the
next, as operations that are ready together run in no fixed order: the median of thirty is
compared, and the lowest and highest are told.
"""

import time
from statistics import median
from typing import Any

import tensorflow  # noqa: F401 - the counter looks for it
from tabulate import tabulate

import tensorlens
from tests.tensorflow.estimate_models import MODELS, loss, measured


def main() -> None:
    """Print the table."""
    rows: list[list[Any]] = []
    for name, make in MODELS.items():
        for optimizer in ("sgd", "adam"):
            for eager in (False, True):
                peaks = measured(make, optimizer, eager, 4 if eager else 31)
                model, batch = make()
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
                middle = median(peaks)
                rows.append(
                    [
                        name,
                        optimizer,
                        "eager" if eager else "graph",
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
