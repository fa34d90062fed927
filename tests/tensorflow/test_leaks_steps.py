"""How the steps of a loop are found that nobody marks, and what happens around them."""

import threading

import keras
import numpy
import pytest
import tensorflow as tf

import tensorlens
from tensorlens.frameworks.tensorflow import when_stepped

X, Y = numpy.ones((8, 5), "float32"), numpy.ones((8, 3), "float32")


@pytest.fixture
def counted():
    steps = []
    stop = when_stepped(lambda: steps.append(1))
    yield steps
    stop()


def dense(**options):
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse", **options)
    return model


@pytest.mark.parametrize("eagerly", [False, True])
def test_each_batch_of_fit_is_a_step(counted, eagerly):
    dense(run_eagerly=eagerly).fit(X, Y, batch_size=2, epochs=3, verbose=0)
    assert len(counted) == 12


@pytest.mark.parametrize("eagerly", [False, True])
def test_ended_watch_gets_no_steps_of_another(eagerly):
    weight, optimizer = keras.Variable(1.0), keras.optimizers.SGD()
    optimizer.build([weight])
    step = lambda: optimizer.apply([tf.constant(1.0)])  # noqa: E731
    step = step if eagerly else tf.function(step)
    told = []
    end_first = when_stepped(lambda: told.append("a"))
    end_second = when_stepped(lambda: told.append("b"))
    for end in (lambda: None, end_first, end_second):
        end()
        step()
    assert (told.count("a"), told.count("b")) == (1, 2)


def test_each_step_of_an_eager_optimizer_is_a_step(counted):
    model, optimizer = dense(), keras.optimizers.Adam()
    for _ in range(5):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(X) - Y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    assert len(counted) == 5


def test_each_run_of_a_compiled_step_is_a_step_also_when_the_next_is_not_traced(counted):
    model, optimizer = dense(), keras.optimizers.SGD()

    @tf.function
    def update(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - Y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    @tf.function
    def forward_and_update(x):
        if tf.reduce_sum(x) > 0.0:
            x = x + 1.0
        update(x)
        return model(x)

    optimizer.build(model.trainable_variables)
    for _ in range(5):
        forward_and_update(tf.constant(X))
    assert len(counted) == 5
    update(tf.constant(X))
    assert len(counted) == 5


def test_train_on_batch_is_a_step_and_evaluation_is_none(counted):
    model = dense()
    for _ in range(3):
        model.train_on_batch(X, Y)
        model.test_on_batch(X, Y)
    assert len(counted) == 3


def test_first_of_two_optimizers_counts_steps(counted):
    first, second = dense(), dense()
    for _ in range(3):
        first.train_on_batch(X, Y)
        second.train_on_batch(X, Y)
    assert len(counted) == 3


def test_when_it_is_closed_nothing_is_counted_and_all_is_as_before():
    base = keras.src.optimizers.base_optimizer.BaseOptimizer
    before = base.__dict__["apply"], type(tf.function(abs)).__call__
    steps = []
    stop = when_stepped(lambda: steps.append(1))
    stop()
    assert (base.__dict__["apply"], type(tf.function(abs)).__call__) == before
    dense().fit(X, Y, verbose=0)
    assert steps == []


def test_an_error_in_a_step_is_the_programs_and_the_watch_ends():
    kept = []

    def step(number):
        kept.append(tf.fill((8,), 2.5))
        if number == 4:
            raise ValueError("the program's own")

    with pytest.raises(ValueError, match="the program's own"):
        tensorlens.find_leaks(step)
    assert (
        tensorlens.find_leaks(lambda: kept.append(tf.fill((8,), 2.5))).leaks[0].bytes_per_step == 32
    )


def test_steps_in_another_thread_and_inside_of_py_function():
    kept = []

    def keep(x):
        kept.append(x + 1.0)  # LEAK
        return x

    @tf.function
    def forward(x):
        return tf.py_function(keep, [x], tf.float32)

    x, reports = tf.fill((6,), 2.5), []
    work = threading.Thread(
        target=lambda: reports.append(tensorlens.find_leaks(lambda: forward(x)))
    )
    work.start()
    work.join()
    (leak,) = reports[0].leaks
    assert (leak.tensors_per_step, leak.bytes_per_step) == (1, 24)
    assert "kept (local) -> list[" in leak.path
    assert leak.source.endswith("# LEAK")


def test_growth_of_recorded_steps_and_the_difference_of_snapshots():
    kept, model = [], dense()
    model.fit(X, Y, verbose=0)
    reporter = tensorlens.MemReporter(model)
    before = reporter.snapshot()
    with tensorlens.record(model) as recording:
        for number in range(3):
            recording.mark(f"step {number}")
            kept.append(tf.fill((100,), 2.5))
    assert sum(each.nbytes for each in kept_of(reporter.snapshot())) == 3 * 400
    assert not kept_of(before)
    assert "kept" in str(reporter.diff(before))
    assert recording.peak("cpu").bytes >= 3 * 400


def kept_of(snapshot):
    return [each for each in snapshot.tensors if each.shape == (100,)]


def test_uncounted_tensors_have_no_verdict(monkeypatch):
    monkeypatch.setenv("TENSORLENS_COUNTER", "heap")
    kept = []
    report = tensorlens.find_leaks(lambda: kept.append(tf.fill((8,), 2.5)))
    assert report.verdict.startswith("not clear: the counter of host memory that is in use does n")
    assert report.notes == ("tensors on cpu are not followed: TENSORLENS_COUNTER asks for heap",)
