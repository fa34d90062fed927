"""Programs that interrupt, lie, race and fail: they run as they do unobserved."""

import contextlib
import gc
import io
import os
import random
import re
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorlens

rng = np.random.default_rng(0)
IMAGES = rng.random((48, 8, 8, 1), dtype="float32")
LABELS = rng.integers(0, 10, 48)


@pytest.fixture(autouse=True)
def tidy():
    tf.zeros(1)
    yield
    keras.backend.clear_session()
    gc.collect()


class Traced(keras.Model):
    """Counts how often its forward pass is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.traces = 0
        self.convolution = keras.layers.Conv2D(4, 3, activation="relu")
        self.flatten = keras.layers.Flatten()
        self.normal = keras.layers.BatchNormalization()
        self.dropout = keras.layers.Dropout(0.3)
        self.dense = keras.layers.Dense(10)

    def call(self, images, training=False):
        self.traces += 1
        features = self.normal(self.flatten(self.convolution(images)))
        return self.dense(self.dropout(features, training=training))


def trained(observe) -> dict[str, object]:
    """Return everything that a seeded ``fit`` leaves behind."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(7)
    net = Traced()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile("adam", loss, metrics=["accuracy"])

    def fit(callbacks=()):
        return net.fit(
            IMAGES,
            LABELS,
            epochs=2,
            batch_size=12,
            validation_split=0.25,
            verbose=0,
            callbacks=[*callbacks],
        ).history

    history = observe(net, fit)
    return {
        "weights": [each.numpy().tobytes() for each in (*net.variables, *net.optimizer.variables)],
        "names": [each.path for each in (*net.variables, *net.optimizer.variables)],
        "history": {key: each for key, each in history.items() if "memory" not in key},
        "traces": net.traces,
        "drawn": (random.random(), np.random.rand(), tf.random.uniform(()).numpy()),
        "function": type(net.train_function).__name__,
    }


def test_a_fit_computes_the_same_bits_under_everything() -> None:
    def observed(net, fit):
        memory = tensorlens.keras.MemoryCallback(file=io.StringIO())
        profiler = tensorlens.LineProfiler(fit, Traced.call)
        with profiler, tensorlens.record():
            history = fit([memory])
        assert {"memory/cpu", "val_memory/cpu_peak"} <= {*history}
        tensorlens.MemReporter(net, net.optimizer).snapshot()
        assert profiler.result().functions[0].calls == 1
        return history

    tf.config.experimental.enable_op_determinism()
    try:
        assert trained(observed) == trained(lambda net, fit: fit())
    finally:
        from tensorflow.python.framework import config

        config.disable_op_determinism()


class Interrupts(keras.callbacks.Callback):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(7)])
def test_an_interrupted_fit_leaves_nothing_of_the_callback(error: BaseException) -> None:
    from tensorlens.recording import oom

    net = keras.Sequential([keras.layers.Input((8, 8, 1)), keras.layers.Flatten()])
    net.add(keras.layers.Dense(10))
    net.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    wanted = oom._wanted
    for _ in range(2):
        memory = tensorlens.keras.MemoryCallback(file=io.StringIO())
        gone = weakref.ref(memory)
        with pytest.raises(type(error)) as raised:
            net.fit(IMAGES, LABELS, batch_size=8, verbose=0, callbacks=[memory, Interrupts(error)])
        assert raised.value is error
        error.__traceback__ = None
        del memory, raised
        gc.collect()
        assert gone() is None
        assert type(net.train_function).__name__ == "function"
        assert oom._wanted == wanted


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timer")
def test_an_interrupt_at_any_time_reaches_the_program() -> None:
    class Interrupted(BaseException):
        pass

    ours = str(Path(tensorlens.__file__).parent)

    def interrupt(number, frame):
        # between any two lines of its own TensorFlow may be left in disorder, or crash
        if not frame.f_code.co_filename.startswith(ours):
            signal.setitimer(signal.ITIMER_REAL, 0.0002)
            return
        # again after a while: one in a callback of the collector is lost
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        raise Interrupted

    net = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    net.compile("adam", "mse")
    x, y = np.zeros((64, 4), "float32"), np.zeros((64, 1), "float32")

    def fit():
        memory = tensorlens.keras.MemoryCallback(file=io.StringIO())
        with tensorlens.record():
            net.fit(x, y, batch_size=8, verbose=0, callbacks=[memory])

    # all is imported then: an interrupted import is Python's own affair
    fit()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(3):
            with pytest.raises(Interrupted):
                signal.setitimer(signal.ITIMER_REAL, 0.01 + 0.092 * number)
                while True:
                    fit()
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with tensorlens.record() as recording:
        held = tf.zeros((12_345,))
    sizes = [each.nbytes for each in recording.peak("cpu").tensors]
    assert sizes.count(4 * 12_345) == 1
    del held


class Raising:
    def __getattribute__(self, name):
        raise RuntimeError(f"asked for {name}")


class Lying:
    @property
    def __class__(self):
        return tf.Variable


class Unequal:
    def __eq__(self, other):
        raise RuntimeError("compared")

    def __hash__(self):
        raise RuntimeError("hashed")

    def __bool__(self):
        raise RuntimeError("tested")

    def __len__(self):
        raise RuntimeError("measured")

    def __repr__(self):
        raise RuntimeError("printed")


def hidden() -> type:
    """Return a class that tells nothing; a global one would keep autograph from all functions."""

    class Secretive(type):
        def __getattribute__(cls, name):
            raise RuntimeError(f"asked for {name}")

        def __instancecheck__(cls, item):
            raise RuntimeError("checked")

        def __eq__(cls, other):
            raise RuntimeError("compared")

        def __hash__(cls):
            return 1

    return Secretive("Hidden", (), {})


class Closed(dict):
    def _closed(self, *given):
        raise RuntimeError("opened")

    __getitem__ = __iter__ = items = keys = values = _closed


class Holder:
    pass


def dead_proxy():
    return weakref.proxy(Holder())


def test_objects_that_raise_when_touched_are_passed_by() -> None:
    holder = Holder()
    inside = tf.ones((7, 11))
    hostile = [Raising(), Lying(), Unequal(), object.__new__(hidden()), dead_proxy()]
    hostile.append(Closed(kept=inside))
    holder.__dict__.update({1: inside, (2, 3): inside})
    holder.hostile = hostile
    snapshot = tensorlens.MemReporter(holder=holder).snapshot()
    (found,) = (each for each in snapshot.tensors if each.shape == (7, 11))
    assert found.nbytes == 308

    def step(index):
        hostile.append(tf.ones((50, 50)))
        hostile.append(Unequal())

    report = tensorlens.find_leaks(step, steps=3, warmup=1)
    assert [(leak.bytes_per_step, leak.tensors_per_step) for leak in report.leaks] == [(10_000, 1)]

    with tensorlens.record() as recording:
        kept = [tf.ones((333,)), *hostile]
    assert [each.nbytes for each in recording.peak("cpu").tensors].count(1332) == 1
    del kept


def test_a_class_that_hides_its_name_is_refused_in_one_line() -> None:
    with pytest.raises(tensorlens.errors.UsageError) as raised:
        tensorlens.MemReporter(hidden())
    assert str(raised.value) == "MemReporter takes Hidden() in place of the class Hidden"


def test_recordings_begin_and_end_while_threads_compute() -> None:
    @tf.function
    def graph(x):
        for _ in tf.range(3):
            x = tf.tanh(x @ x)
        return tf.reduce_sum(x)

    @tf.function
    def python(x):
        return tf.numpy_function(lambda a: a * 2, [x], tf.float32)

    def data():
        made = tf.data.Dataset.range(20).map(
            lambda _: tf.random.normal((16, 16)), num_parallel_calls=2
        )
        flat = made.interleave(tf.data.Dataset.from_tensors, num_parallel_calls=2)
        return sum(1 for _ in flat.batch(5).prefetch(2))

    def tape():
        with tf.GradientTape() as taken:
            taken.watch(x)
            y = tf.reduce_sum(x @ x)
        return taken.gradient(y, x)

    x = tf.ones((32, 32))
    over, failures = threading.Event(), []

    def work(act):
        try:
            while not over.wait(0.002):
                act()
        except BaseException as failure:
            failures.append(failure)

    acts = [lambda: graph(x), lambda: python(x), data, tape]
    threads = [threading.Thread(target=work, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    try:
        for number in range(2):
            with tensorlens.record() as recording:
                held = tf.zeros((54_321 + number,))
                tensorlens.MemReporter(held=held).snapshot()
                recording.mark("held")
            blocks = recording.at("held", "cpu").tensors
            (ours,) = (each for each in blocks if each.nbytes == 4 * (54_321 + number))
            assert ours.born.filename == __file__
            assert ours.born.function.endswith("_while_threads_compute")
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert failures == []


def test_an_error_inside_a_graph_is_told_in_the_same_words() -> None:
    def told(observe) -> str:
        @tf.function
        def checked(x):
            product = x @ x
            tf.debugging.assert_equal(tf.reduce_sum(product), -1.0, message="too much")
            return product

        with pytest.raises(tf.errors.InvalidArgumentError) as raised, observe(checked):
            checked(tf.ones((4, 4)))
        # of two functions of one name, TensorFlow numbers the second
        return re.sub(r"_checked_\d+", "_checked", raised.value.message)

    @contextlib.contextmanager
    def observed(checked):
        with tensorlens.LineProfiler(checked), tensorlens.record():
            yield

    # by one line, as the message lists the callers
    plain, seen = (told(observe) for observe in (contextlib.nullcontext, observed))
    assert "too much" in plain
    assert seen == plain


def ended(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


EXITS = """
import sys, threading, time
import tensorflow as tf
import tensorlens

graph = tf.function(lambda x: tf.reduce_sum(x @ x))


@tensorlens.profile
def made():
    return tf.zeros((1000,))


def work():
    x = tf.ones((32, 32))
    while True:
        graph(x)
        [tf.ones((10, 10)) for _ in range(10)]
        time.sleep(0)


made()
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
tensorlens.record().__enter__()
time.sleep(0.2)
sys.exit(3)
"""


def test_an_exit_while_threads_compute_and_something_records() -> None:
    done = ended(EXITS)
    assert done.returncode == 3, done.stderr
    assert "made  <string>:9  1 call" in done.stdout
    assert "Traceback" not in done.stderr
