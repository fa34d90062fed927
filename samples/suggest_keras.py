"""The biggest savings for three Keras models, and what it really saves.

``python samples/suggest_keras.py`` runs each operation by operation, ``--graph`` as Keras does by
default; it takes a minute or two for each. Of one alone:
``tensorlens suggest samples/suggest_keras.py:make_encoder --verify``.
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

import tensorlens

layers = keras.layers


class Block(layers.Layer):
    """Four dense layers."""

    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.inner = [layers.Dense(width, "tanh") for _ in range(4)]

    def build(self, shape):
        for layer in self.inner:
            layer.build(shape)

    def call(self, x):
        for layer in self.inner:
            x = layer(x)
        return x


class Residual(layers.Layer):
    """Two convolutions, added to what they are given."""

    def __init__(self, filters, **kwargs):
        super().__init__(**kwargs)
        self.first = layers.Conv2D(filters, 3, padding="same", activation="relu")
        self.second = layers.Conv2D(filters, 3, padding="same")

    def build(self, shape):
        self.first.build(shape)
        self.second.build(shape)

    def call(self, x):
        return keras.ops.relu(x + self.second(self.first(x)))


class Encoder(layers.Layer):
    """Attention and a dense network, each added to what it is given."""

    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.norms = [layers.LayerNormalization() for _ in range(2)]
        self.attention = layers.MultiHeadAttention(4, width // 4)
        self.up, self.down = layers.Dense(4 * width, "gelu"), layers.Dense(width)

    def build(self, shape):
        for norm in self.norms:
            norm.build(shape)
        self.attention.build(shape, shape)
        self.up.build(shape)
        self.down.build((*shape[:-1], 4 * shape[-1]))

    def call(self, x):
        y = self.norms[0](x)
        x = x + self.attention(y, y)
        return x + self.down(self.up(self.norms[1](x)))


def uniform(shape, seed, *limits):
    # not from NumPy: whether an array is copied depends on where its memory begins
    return tf.random.stateless_uniform(shape, [0, seed], *limits)


def make_mlp(batch=512, run_eagerly=True):
    inputs = x = keras.Input((128,))
    for _ in range(5):
        x = Block(128)(x)
    model = keras.Model(inputs, layers.Dense(10)(x))
    model.compile("adam", "mse", run_eagerly=run_eagerly)
    x, y = uniform([batch, 128], 0), uniform([batch, 10], 1)
    return lambda: model.train_on_batch(x, y)


def make_cnn(batch=16, run_eagerly=True):
    inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(32, 3, padding="same")(inputs)
    for _ in range(4):
        x = Residual(32)(x)
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(10)(x))
    model.compile("adam", "mse", run_eagerly=run_eagerly)
    x, y = uniform([batch, 32, 32, 3], 0), uniform([batch, 10], 1)
    return lambda: model.train_on_batch(x, y)


def make_encoder(batch=8, run_eagerly=True):
    inputs = keras.Input((64,), dtype="int32")
    x = layers.Embedding(1000, 64)(inputs)
    for _ in range(4):
        x = Encoder(64)(x)
    model = keras.Model(inputs, layers.Dense(1000)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, run_eagerly=run_eagerly)
    x, y = (uniform([batch, 64], seed, 0, 1000, tf.int32) for seed in range(2))
    return lambda: model.train_on_batch(x, y)


if __name__ == "__main__":
    arguments = {"run_eagerly": "--graph" not in sys.argv}
    for make_step in (make_mlp, make_cnn, make_encoder):
        print(tensorlens.suggest(make_step, arguments=arguments, verify=True))
