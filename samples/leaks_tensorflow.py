"""Four ways in which TensorFlow programs grow, each with the report on it.

Run ``python samples/leaks_tensorflow.py tapes``, or without a name for all of them.
"""

import sys

import keras
import numpy as np
import tensorflow as tf

import tensorlens


def make_model():
    """Return a small classifier."""
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)]
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def losses():
    """Losses are kept as tensors."""
    model, kept = make_model(), []
    x, y = tf.random.normal((32, 64)), tf.zeros((32,), tf.int32)

    def step():
        kept.append(model.compute_loss(x, y, model(x)))

    return step


def tapes():
    """Persistent tapes are kept, and with each of them what its step computed."""
    model, kept = make_model(), []
    x = tf.random.normal((32, 64))

    def step():
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean(model(x))
        tape.gradient(loss, model.trainable_variables)
        kept.append(tape)

    return step


def retracing():
    """A Python number is an argument of a function, which is traced for each number anew."""
    x = tf.random.normal((32, 64))

    @tf.function
    def scaled(x, number):
        return x * number

    def step(number):
        scaled(x, number)

    return step


def predict():
    """Each call makes a pipeline that waits for the collector, which is no leak."""
    model, x = make_model(), np.ones((32, 64), "float32")
    return lambda: model.predict(x, verbose=0)


PROGRAMS = {each.__name__: each for each in (losses, tapes, retracing, predict)}


def main():
    """Print the reports."""
    for name in sys.argv[1:] or PROGRAMS:
        print(tensorlens.find_leaks(PROGRAMS[name](), steps=8))


if __name__ == "__main__":
    main()
