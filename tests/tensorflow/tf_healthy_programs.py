"""Small programs that keep memory for good reasons: none of them leaks."""

from collections.abc import Callable

import keras
import numpy
import tensorflow as tf

HEALTHY: dict[str, Callable[[], Callable]] = {}


def healthy(make):
    """Add a program: a function that returns the function that does one step."""
    HEALTHY[make.__name__] = make
    return make


def filled(*shape):
    """Return a tensor of its own: small constants are shared."""
    return tf.fill(shape, 2.5)


def dense(optimizer="sgd", **options):
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    model.compile(optimizer, "mse", **options)
    return model


X, Y = numpy.ones((8, 5), "float32"), numpy.ones((8, 3), "float32")


@healthy
def adam_makes_its_slots():
    model, optimizer = dense(), keras.optimizers.Adam()
    x, y = tf.constant(X), tf.constant(Y)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return float(loss)

    return step


@healthy
def graph_step_is_traced_once():
    model, optimizer = dense(), keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)

    @tf.function
    def step_of(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    x, y = tf.constant(X), tf.constant(Y)
    return lambda: float(step_of(x, y))


@healthy
def losses_kept_as_numbers():
    losses, x = [], filled(8, 4)
    return lambda: losses.append(float(tf.reduce_mean(x)))


@healthy
def train_on_batch():
    model = dense("adam")
    return lambda: model.train_on_batch(X, Y)


@healthy
def fit_in_a_loop():
    model = dense("adam")
    return lambda: model.fit(X, Y, batch_size=4, verbose=0)


@healthy
def fit_eagerly():
    model = dense("adam", run_eagerly=True)
    return lambda: model.fit(X, Y, batch_size=4, verbose=0)


@healthy
def evaluate_in_a_loop():
    model = dense()
    return lambda: model.evaluate(X, Y, verbose=0)


@healthy
def predict_in_a_loop():
    model = dense()
    return lambda: model.predict(X, verbose=0)


@healthy
def history_of_numbers():
    model, histories = dense(), []
    return lambda: histories.append(model.fit(X, Y, verbose=0).history)


@healthy
def last_tape_on_self():
    state, weight = {}, tf.Variable(filled(9))

    def step():
        with tf.GradientTape(persistent=True) as tape:
            tf.exp(weight)
        state["tape"] = tape

    return step


@healthy
def state_that_is_carried():
    state = filled(4, 3)

    def step():
        nonlocal state
        state = tf.tanh(state * 2.0)

    return step


@healthy
def running_total_in_a_variable():
    total = tf.Variable(0.0)
    return lambda: total.assign_add(tf.reduce_sum(filled(8)))


@healthy
def metric_with_a_result():
    mean = keras.metrics.Mean()

    def step():
        mean.update_state(filled(8))
        return float(mean.result())

    return step


@healthy
def dataset_that_goes_on():
    data = tf.data.Dataset.from_tensor_slices(numpy.ones((64, 5), "float32"))
    batches = iter(data.repeat().shuffle(8).batch(4).prefetch(2))
    return lambda: next(batches)


@healthy
def shapes_that_come_again():
    @tf.function
    def forward(x):
        return tf.reduce_sum(x)

    inputs = [filled(length) for length in (2, 3)]
    return lambda number: float(forward(inputs[number % 2]))


@healthy
def checkpoint_of_the_weights_replaced():
    model, best = dense(), {}

    def step():
        best["weights"] = [tf.identity(each) + 0.0 for each in model.trainable_variables]

    return step
