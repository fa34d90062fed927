"""What an input queue holds: batches made against batches used, for several queue sizes.

    python samples/input_queue.py          # torch, and Keras where it is installed

A blog post of 2018 counted in Keras what ``predict_generator`` had taken from a generator when it
was through with 10 batches: 21 with ``max_queue_size=10``, 12 with 2. This does the same with
today's loaders: a dataset counts the batches it has made, and ``tensorlens.inputs()`` says where
those are that the loop has not got.
"""

import importlib.util
import multiprocessing
import os
import threading
import time

import tensorlens

BATCH, COLUMNS, USED = 128, 60, 10
inputs = tensorlens.inputs
LINE = "{:<34}{:>6}{:>6}{:>10}{:>8}{:>9}{:>13}"


def title(text):
    print(f"\n{text}")
    print(LINE.format("", "made", "used", "made-used", "held", "at most", "bytes held"))


def show(name, made, used, queue):
    most = "n/a" if queue.max_batches is None else queue.max_batches
    nbytes = "n/a" if queue.nbytes is None else f"{queue.nbytes:,}"
    held = "n/a" if queue.batches is None else queue.batches
    print(LINE.format(name, made, used, made - used, held, most, nbytes))


def at_rest(made, look):
    """Wait until nothing is made any more, and return what is held then."""
    before = -1
    while made() != before:
        before = made()
        time.sleep(0.3)
    return look()


def torch_loaders():
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Rows(Dataset):
        def __init__(self):
            self.samples = multiprocessing.Value("i", 0)

        def __len__(self):
            return 100 * BATCH

        def __getitem__(self, at):
            with self.samples.get_lock():
                self.samples.value += 1
            return torch.zeros(COLUMNS)

    title(f"torch DataLoader, {USED} batches of {BATCH} x {COLUMNS} float32 used")
    for workers, prefetch in ((0, None), (1, 2), (2, 2), (2, 8)):
        rows = Rows()
        loader = DataLoader(
            rows,
            batch_size=BATCH,
            num_workers=workers,
            prefetch_factor=prefetch,
            multiprocessing_context="fork" if workers else None,
        )
        iterator = iter(loader)
        for _ in range(USED):
            next(iterator)
        queue = at_rest(lambda rows=rows: rows.samples.value, lambda it=iterator: inputs(it))
        name = f"workers={workers} prefetch_factor={prefetch}"
        show(name, rows.samples.value // BATCH, USED, queue)
    print(f"\n{queue}")


def keras_datasets():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras
    import numpy as np

    class Rows(keras.utils.PyDataset):
        def __init__(self, **options):
            super().__init__(**options)
            self.made, self.lock = 0, threading.Lock()

        def __len__(self):
            return 100

        def __getitem__(self, at):
            with self.lock:
                self.made += 1
            return (np.zeros((BATCH, COLUMNS), np.float32),)

    class Look(keras.callbacks.Callback):
        def __init__(self, rows):
            super().__init__()
            self.rows = rows

        def on_predict_batch_end(self, step, logs=None):
            if step == USED - 1:
                queue = at_rest(lambda: self.rows.made, lambda: inputs(self.rows))
                rows = self.rows
                # Keras has looked at two batches before the first, to know their shapes
                name = f"workers={rows.workers} max_queue_size={rows.max_queue_size}"
                show(name, rows.made - 2, USED, queue)

    layer = keras.Input((COLUMNS,))
    model = keras.Model(layer, keras.layers.Dense(10)(layer))
    title(f"Keras {keras.__version__} PyDataset on {keras.backend.backend()}, {USED} batches used")
    for workers in (1, 2):
        for size in (2, 4, 10):
            rows = Rows(workers=workers, max_queue_size=size)
            model.predict(rows, verbose=0, callbacks=[Look(rows)])


def tf_datasets():
    import numpy as np
    import tensorflow as tf

    title(f"tf.data, {USED} batches used")
    for prefetch in (None, 1, 5, tf.data.AUTOTUNE):
        made = [0]

        def rows(made=made):
            while True:
                made[0] += 1
                yield np.zeros((BATCH, COLUMNS), np.float32)

        spec = tf.TensorSpec((BATCH, COLUMNS), tf.float32)
        dataset = tf.data.Dataset.from_generator(rows, output_signature=spec)
        dataset = dataset if prefetch is None else dataset.prefetch(prefetch)
        iterator = iter(dataset)
        for _ in range(USED):
            next(iterator)
        queue = at_rest(lambda made=made: made[0], lambda it=iterator: inputs(it))
        name = "AUTOTUNE" if prefetch == tf.data.AUTOTUNE else prefetch
        show("no prefetch()" if prefetch is None else f"prefetch({name})", made[0], USED, queue)


def main():
    print(tensorlens.inputs.plan((256, 256, 3), "float32", 256, workers=2, prefetch=2))
    if importlib.util.find_spec("torch"):
        torch_loaders()
    if importlib.util.find_spec("keras") and importlib.util.find_spec("tensorflow"):
        keras_datasets()
        tf_datasets()


if __name__ == "__main__":
    main()
