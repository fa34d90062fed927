"""What tf.data and Keras hold ahead of the step, against what was made and not used."""

import gc
import re
import threading
import time
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorlens
from tests.ledger_terms import check_ledger

AUTOTUNE = tf.data.AUTOTUNE
ROWS, COLUMNS, CLASSES = 8, 60, 10
BYTES = ROWS * (COLUMNS + CLASSES) * 4
"""A batch of float32 inputs and targets."""
SIGNATURE = (
    tf.TensorSpec((ROWS, COLUMNS), tf.float32),
    tf.TensorSpec((ROWS, CLASSES), tf.float32),
)


def batch():
    return np.zeros((ROWS, COLUMNS), np.float32), np.zeros((ROWS, CLASSES), np.float32)


class Source:
    """A generator function that counts what it gave."""

    def __init__(self, batches=10_000):
        self.made = 0
        self.batches = batches

    def __call__(self):
        for _ in range(self.batches):
            self.made += 1
            yield batch()

    def dataset(self):
        return tf.data.Dataset.from_generator(self, output_signature=SIGNATURE)


def at_rest(count, look, least=1, seconds=60):
    """Return what is held once it is what ``count()`` says twice, with a tenth second between.

    Who fills the queue may get no time for longer than that: ``least`` are waited for.
    """
    end, before = time.monotonic() + seconds, None
    while True:
        counted = count()
        found = look()
        # what is held now may be unknown
        held = counted if found.batches is None else found.batches
        is_same = (counted, held) == before == (count(), counted)
        if (is_same and counted >= least) or time.monotonic() > end:
            return found, counted
        before = counted, held
        time.sleep(0.1)


@pytest.mark.parametrize("prefetch", [1, 5, AUTOTUNE])
def test_queue_holds_produced_minus_consumed(prefetch):
    source = Source()
    dataset = source.dataset().prefetch(prefetch)
    iterator = iter(dataset)
    for _ in range(4):
        next(iterator)
    least = 1 if prefetch == AUTOTUNE else prefetch
    found, counted = at_rest(lambda: source.made - 4, lambda: tensorlens.inputs(dataset), least)
    assert found.batches == counted > 0
    assert found.nbytes == counted * BYTES
    assert found.batch_nbytes == BYTES
    if prefetch == AUTOTUNE:
        assert (found.max_batches, found.max_nbytes) == (None, None)
        assert "AUTOTUNE" in found.missing["max_batches"]
    else:
        assert counted == prefetch
        assert (found.max_batches, found.max_nbytes) == (prefetch, prefetch * BYTES)
    # nothing was taken
    next(iterator)
    found, after = at_rest(lambda: source.made - 5, lambda: tensorlens.inputs(iterator))
    assert found.batches == after


def test_tensorflow_prefetches_even_unasked():
    source = Source()
    iterator = iter(source.dataset())
    next(iterator)
    found, counted = at_rest(lambda: source.made - 1, lambda: tensorlens.inputs(iterator))
    assert found.batches == counted
    assert found.max_batches is None


def test_a_dataset_that_nobody_iterates_over_holds_nothing():
    source = Source()
    found = tensorlens.inputs(source.dataset().prefetch(3))
    assert (found.batches, found.nbytes, found.max_batches, found.max_nbytes) == (
        *(0, 0, 3),
        3 * BYTES,
    )
    assert tensorlens.inputs(source.dataset()).max_batches is None
    assert source.made == 0


def parts_of(dataset, **wanted):
    """Return ``(elements, unit, nbytes, at most)`` by name, once elements are as wanted.

    Two looks have to agree: tf.data counts a buffer's elements first, and then its bytes.
    """
    iterator = iter(dataset)
    next(iterator)
    end, before = time.monotonic() + 60, None
    while True:
        found = tensorlens.inputs(iterator)
        parts = {part.name: part for part in found.parts}
        is_there = all(
            name in parts and parts[name].elements == each for name, each in wanted.items()
        )
        if is_there and parts == before:
            break
        assert time.monotonic() < end, found
        before = parts
        time.sleep(0.02)
    return found, {
        name: (part.elements, part.unit, part.nbytes, part.max_elements)
        for name, part in parts.items()
    }


def test_samples_in_a_shuffle_buffer_are_no_batches():
    # an int64 each
    numbers = tf.data.Dataset.range(200)
    found, parts = parts_of(numbers.shuffle(20).batch(5).prefetch(1), Shuffle=19, Prefetch=1)
    assert parts["Shuffle"] == (19, "sample", 19 * 8, 20)
    assert parts["Prefetch"] == (1, "batch", 40, 1)
    assert (found.batches, found.nbytes, found.max_batches) == (1, 19 * 8 + 40, 1)
    assert found.max_nbytes == 20 * 8 + 40


def test_parallel_calls_hold_their_results():
    numbers = tf.data.Dataset.range(200)
    held, parts = parts_of(
        numbers.map(lambda n: tf.zeros((4,)), num_parallel_calls=3).prefetch(2),
        ParallelMapV2=3,
        Prefetch=2,
    )
    assert parts == {"Prefetch": (2, "batch", 32, 2), "ParallelMapV2": (3, "batch", 48, 3)}
    assert (held.batches, held.max_batches, held.max_nbytes) == (5, 5, 80)


def test_dataset_cache_is_no_queue():
    numbers = tf.data.Dataset.range(40).batch(4).cache().prefetch(2)
    iterator = iter(numbers)
    for _ in range(10):
        next(iterator)
    found = tensorlens.inputs(iterator)
    cache = next(part for part in found.parts if "Cache" in part.name)
    assert (cache.elements, cache.nbytes, cache.ahead) == (10, 40 * 8, False)
    assert (found.batches, found.nbytes) == (0, 320)
    assert "cache" in found.missing["max_nbytes"]


def test_interleaved_ones_count_too():
    def inner(_):
        return tf.data.Dataset.range(50).map(lambda n: tf.zeros((4,)))

    numbers = tf.data.Dataset.range(200).interleave(
        inner, cycle_length=4, num_parallel_calls=2, block_length=3
    )
    # 7 of each of 4 that are gone through and 8 that will be
    _, parts = parts_of(numbers.prefetch(1), ParallelInterleaveV4=7 * 12)
    elements, _, nbytes, most = parts["ParallelInterleaveV4"]
    assert (elements, nbytes, most) == (7 * 12, 7 * 12 * 16, 7 * 12)


def test_ram_budget_is_noted():
    options = tf.data.Options()
    options.autotune.ram_budget = 10_000_000
    iterator = iter(Source().dataset().prefetch(AUTOTUNE).with_options(options))
    next(iterator)
    reason = tensorlens.inputs(iterator).missing["max_nbytes"]
    told = int(re.search(r"RAM budget of ([\d,]+) B", reason)[1].replace(",", ""))
    # what buffers hold may be off already
    assert 10_000_000 - 10 * BYTES <= told <= 10_000_000


def test_queue_without_autotune_is_unknown():
    options = tf.data.Options()
    options.autotune.enabled = False
    iterator = iter(Source().dataset().prefetch(3).with_options(options))
    next(iterator)
    found = tensorlens.inputs(iterator)
    assert (found.batches, found.nbytes) == (None, None)
    assert (found.max_batches, found.max_nbytes) == (3, 3 * BYTES)
    assert "autotune is off" in found.missing["batches"]
    plain = iter(Source().dataset().with_options(options))
    assert tensorlens.inputs(plain).max_batches == 0


def test_exhausted_and_wrapped_iterators():
    dataset = Source(3).dataset().prefetch(2)
    iterator = iter(dataset)
    loop = enumerate(iterator)
    next(loop)
    found, _ = at_rest(lambda: 2, lambda: tensorlens.inputs(loop), 2)
    assert (found.batches, found.max_batches) == (2, 2)
    assert len(list(loop)) == 2
    found = tensorlens.inputs(iterator)
    assert (found.batches, found.nbytes) == (0, 0)


def test_a_loop_that_waits_in_another_thread_is_not_waited_for():
    may_come = threading.Event()

    def slow():
        yield batch()
        may_come.wait(30)
        yield batch()

    iterator = iter(tf.data.Dataset.from_generator(slow, output_signature=SIGNATURE).prefetch(2))
    thread = threading.Thread(target=lambda: list(iterator), daemon=True)
    thread.start()
    found = tensorlens.inputs(iterator)
    assert found.max_batches == 2
    assert not may_come.is_set()
    may_come.set()
    thread.join(30)
    assert not thread.is_alive()


def test_inputs_keeps_no_dataset_alive():
    dataset = Source().dataset().prefetch(2)
    iterator = iter(dataset)
    next(iterator)
    tensorlens.inputs(dataset), tensorlens.inputs(iterator)
    known = [weakref.ref(dataset), weakref.ref(iterator)]
    del dataset, iterator
    gc.collect()
    assert [each() for each in known] == [None, None]


class Batches(keras.utils.PyDataset):
    """Counts what was made; Keras looks at two before it begins, to know the shapes."""

    looked_at = 2

    def __init__(self, **options):
        super().__init__(**options)
        self.made = 0
        self.lock = threading.Lock()

    def __len__(self):
        return 30

    def __getitem__(self, at):
        with self.lock:
            self.made += 1
        return batch()


class Looking(keras.callbacks.Callback):
    """Looks at the queue after some steps, once it is at rest with ``least`` batches."""

    def __init__(self, given, made, least=1):
        super().__init__()
        self.given, self.made, self.least = given, made, least
        self.seen = []

    def on_train_batch_end(self, step, logs=None):
        if step in (3, 10):
            used = step + 1
            self.seen.append(
                at_rest(
                    *(lambda: self.made() - used, lambda: tensorlens.inputs(self.given)),
                    self.least,
                )
            )

    on_predict_batch_end = on_train_batch_end


@pytest.fixture(scope="module")
def model():
    inputs = keras.Input((COLUMNS,))
    made = keras.Model(inputs, keras.layers.Dense(CLASSES)(inputs))
    made.compile("sgd", "mse")
    return made


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("size", [2, 4, 10])
def test_a_py_dataset(model, workers, size):
    dataset = Batches(workers=workers, max_queue_size=size)
    least = size + 1 if workers == 2 else 1
    looking = Looking(dataset, lambda: dataset.made - dataset.looked_at, least)
    before = tensorlens.inputs(dataset)
    assert (before.batches, dataset.made) == (0, 0)
    model.fit(dataset, epochs=1, verbose=0, callbacks=[looking])
    assert len(looking.seen) == 2
    for found, counted in looking.seen:
        assert found.batch_nbytes == BYTES
        if workers == 2:
            assert counted == found.max_batches == before.max_batches == size + 1
            assert found.max_nbytes == (size + 1) * BYTES
            assert (found.batches, found.nbytes) == (None, None)
            assert "OrderedEnqueuer" in found.missing["batches"]
        else:
            assert found.batches == counted > 0
            assert found.nbytes == counted * BYTES
            # whatever max_queue_size says, it is tf.data's AUTOTUNE that decides
            assert (found.max_batches, before.max_batches) == (None, None)
            assert "AUTOTUNE" in found.missing["max_batches"]
    # all of it was trained on: nothing was taken
    assert dataset.made == 30 + dataset.looked_at
    assert tensorlens.inputs(dataset).batches == 0


def test_dataset_from_generator(model):
    source = Source()
    generator = source()
    looking = Looking(generator, lambda: source.made)
    model.fit(generator, steps_per_epoch=12, verbose=0, callbacks=[looking])
    assert len(looking.seen) == 2
    for found, counted in looking.seen:
        assert found.batches == counted > 0
        assert found.nbytes == counted * BYTES
        assert found.max_batches is None


def test_prediction_over_a_py_dataset(model):
    dataset = Batches(workers=2, max_queue_size=3)
    looking = Looking(dataset, lambda: dataset.made - dataset.looked_at, least=4)
    assert model.predict(dataset, verbose=0, callbacks=[looking]).shape == (30 * ROWS, CLASSES)
    assert [(found.max_batches, counted) for found, counted in looking.seen] == [(4, 4), (4, 4)]


def queued(ledger):
    return [(term.of, term.nbytes) for term in ledger.parts if term.key == "queued"]


def test_ledger_term_queued_input():
    gc.collect()
    reporter = tensorlens.MemReporter()
    # 100 int64 each, which TensorFlow allocates: of a generator's they may be NumPy's own
    iterator = iter(tf.data.Dataset.range(100).map(lambda n: tf.fill((100,), n)).prefetch(5))
    next(iterator)
    # TensorFlow may hold results of map() besides, which it makes parallel
    end = time.monotonic() + 60
    while True:
        held = tensorlens.inputs(iterator).batches
        ledger = reporter.snapshot().ledger["cpu"]
        is_same = held == tensorlens.inputs(iterator).batches
        if (is_same and held >= 5) or time.monotonic() > end:
            break
        time.sleep(0.02)
    if ledger.allocated is None:
        pytest.skip("nothing counts TensorFlow's CPU allocator here")
    assert queued(ledger) == [("allocated", held * 800)]
    assert held >= 5
    assert ledger.allocated >= held * 800
    assert ledger.allocated == ledger.named + ledger.unnamed


class Large(Batches):
    """Batches of many pages, which are allocated at once and touched later."""

    def __getitem__(self, number):
        inputs, targets = super().__getitem__(number)
        self.scratch = np.empty((64, 1 << 20), np.float32)
        return inputs, targets


def test_no_term_is_negative_while_a_queue_fills(model):
    dataset = Large(workers=2, max_queue_size=8)
    reporter = tensorlens.MemReporter()
    ledgers = []
    take = lambda step, logs: ledgers.append(reporter.snapshot().ledger["cpu"])  # noqa: E731
    looking = keras.callbacks.LambdaCallback(on_train_batch_begin=take, on_train_batch_end=take)
    model.fit(dataset, epochs=1, steps_per_epoch=8, verbose=0, callbacks=[looking])
    assert len(ledgers) == 16
    for ledger in ledgers:
        check_ledger(ledger)


class Failing(Batches):
    """Cannot be asked for anything but batches by those who train."""

    def __getattr__(self, name):
        raise RuntimeError(f"asked for {name}")

    @property
    def max_queue_size(self):
        return self._max_queue_size


def test_a_hostile_py_dataset_is_not_asked():
    dataset = Failing(workers=2, max_queue_size=5)
    found = tensorlens.inputs(dataset, batch=batch())
    assert (found.max_batches, found.max_nbytes) == (6, 6 * BYTES)


def test_queue_on_the_host_in_leak_report():
    from queue import Queue

    waiting = Queue(maxsize=2)
    waiting.put(tf.zeros((10, 10)))
    found = tensorlens.inputs(waiting)
    assert (found.batches, found.nbytes, found.max_nbytes) == (1, 400, 800)
