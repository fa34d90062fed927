"""Estimates of Keras models with a train step of their own, of the shapes of the public guides."""

import gc
from math import prod
from statistics import median

import keras
import pytest
import tensorflow as tf
from keras import layers

import tensorlens
from tensorlens.errors import UsageError
from tensorlens.frameworks.tensorflow import cpu_counter

IMAGE = (28, 28, 1)
BATCH = 64
SCALARS = 8 + 4
"""An optimizer's counter of steps and its learning rate."""


class Autoencoder(keras.Model):
    """A train step, and no call()."""

    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            found = self.decoder(self.encoder(data))
            loss = tf.reduce_mean(keras.losses.binary_crossentropy(data, found))
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


class Adversaries(keras.Model):
    """Two networks, each with an optimizer, which compile() takes under names of its own."""

    def __init__(self, discriminator, generator):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.tracker = keras.metrics.Mean(name="loss")
        self.seed_generator = keras.random.SeedGenerator(1)

    @property
    def metrics(self):
        return [self.tracker]

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn

    def train_step(self, real):
        count = tf.shape(real)[0]
        noise = keras.random.normal((count, 4), seed=self.seed_generator)
        both = tf.concat([self.generator(noise), real], axis=0)
        labels = tf.concat([tf.ones((count, 1)), tf.zeros((count, 1))], axis=0)
        with tf.GradientTape() as tape:
            loss = self.loss_fn(labels, self.discriminator(both))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply(tape.gradient(loss, weights), weights)
        noise = keras.random.normal((count, 4), seed=self.seed_generator)
        with tf.GradientTape() as tape:
            made = self.discriminator(self.generator(noise))
            loss = self.loss_fn(tf.zeros((count, 1)), made)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply(tape.gradient(loss, weights), weights)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def encoder():
    inner = [layers.Conv2D(32, 3, strides=2, activation="relu"), layers.Flatten(), layers.Dense(4)]
    return keras.Sequential([keras.Input(IMAGE), *inner])


def decoder():
    inner = [layers.Dense(784, activation="sigmoid"), layers.Reshape(IMAGE)]
    return keras.Sequential([keras.Input((4,)), *inner])


def autoencoder():
    model = Autoencoder(encoder(), decoder())
    model.compile(optimizer=keras.optimizers.Adam())
    return model


def adversaries():
    discriminator = keras.Sequential([encoder(), layers.Dense(1)])
    discriminator.build((None, *IMAGE))
    model = Adversaries(discriminator, decoder())
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(), keras.optimizers.SGD(momentum=0.9), loss)
    return model


def nbytes(weights):
    return sum(4 * prod(each.shape) for each in weights)


def estimated(model, **options):
    options = {"batch_size": BATCH, "input_shape": IMAGE, "device": "cpu", **options}
    return tensorlens.estimate(model, **options)


def measured(make):
    """Return the median peak of a step, with all that the model holds."""
    read = cpu_counter().reader()
    gc.collect()
    before = read()[0]
    model = make()
    images = tf.random.uniform((BATCH, *IMAGE))
    model.make_train_function()
    peaks = []
    for _ in range(8):
        read()
        model.train_function(iter([images]))
        peaks.append(read()[1] - before)
    return median(peaks[1:])


@pytest.mark.parametrize("make", [autoencoder, adversaries])
def test_a_train_step_of_its_own_is_within_the_bounds(make):
    found = estimated(make())
    assert found.lower <= measured(make) <= found.upper


@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}])
def test_each_optimizer_has_the_slots_of_its_network(options):
    model = autoencoder()
    weights = nbytes(model.trainable_weights)
    roles = estimated(model, **options).by_role
    assert (roles["parameter"], roles["optimizer"]) == (weights, 2 * weights + SCALARS)
    model = adversaries()
    two, one = nbytes(model.discriminator.weights), nbytes(model.generator.weights)
    roles = estimated(model, **options).by_role
    assert roles["parameter"] == one + two
    # Keras makes a third optimizer in compile(), which has no slots as it is never used
    assert roles["optimizer"] == 2 * two + one + 3 * SCALARS


@pytest.mark.parametrize("make", [autoencoder, adversaries])
def test_the_model_stays_as_it_was(make):
    model = make()
    before = {name: id(value) for name, value in model.__dict__.items()}
    optimizers = [each for each in model.__dict__.values() if isinstance(each, keras.Optimizer)]
    read = cpu_counter().reader()
    estimated(model)
    gc.collect()
    held = read()[0]
    estimated(model)
    gc.collect()
    assert read()[0] == held
    assert {name: id(value) for name, value in model.__dict__.items()} == before
    assert [each for each in optimizers if each.built] == []


def test_a_batch_without_a_shape_is_asked_for():
    with pytest.raises(UsageError, match=r"Autoencoder .* has no call\(\); give input_shape="):
        estimated(autoencoder(), input_shape=None)


def test_a_train_step_that_fails_is_named():
    with pytest.raises(UsageError, match=r"Adversaries.train_step\(\) fails .*\(64, 9, 9, 1\)"):
        estimated(adversaries(), input_shape=(9, 9, 1))


def test_an_optimizer_for_a_model_with_several_is_refused():
    with pytest.raises(UsageError, match="Adversaries has d_optimizer and g_optimizer"):
        estimated(adversaries(), optimizer="adam")


class Unpacking(keras.Model):
    """A functional model whose step takes targets, though it is compiled without a loss."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def test_targets_of_a_step_without_a_loss_are_like_the_outputs():
    given = keras.Input((32,))
    model = Unpacking(given, layers.Dense(5)(given))
    model.compile(optimizer="adam")
    found = tensorlens.estimate(model, batch_size=BATCH, device="cpu")
    assert found.by_role["input"] == BATCH * 4 * (32 + 5)
    assert found.by_role["optimizer"] == 2 * 4 * (32 * 5 + 5) + SCALARS
