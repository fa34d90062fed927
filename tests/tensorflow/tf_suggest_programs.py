"""Keras programs whose savings can be told by hand, or are told beforehand and measured."""

import keras
import tensorflow as tf

WIDTH, LAYERS, BLOCKS, CLASSES = 64, 3, 3, 10
BATCH = 1024
OUTPUT_BYTES = BATCH * WIDTH * 4


def weights(blocks, layers=LAYERS):
    """Return how many there are, kernels and biases, and their bytes."""
    layers *= blocks
    elements = layers * (WIDTH * WIDTH + WIDTH) + WIDTH * CLASSES + CLASSES
    return 2 * (layers + 1), 4 * elements


class Block(keras.layers.Layer):
    """Layers that keep their outputs for backward."""

    def __init__(self, layers=LAYERS, **kwargs):
        super().__init__(**kwargs)
        self.inner = [keras.layers.Dense(WIDTH, "tanh") for _ in range(layers)]

    def build(self, shape):
        for layer in self.inner:
            layer.build(shape)

    def call(self, x):
        for layer in self.inner:
            x = layer(x)
        return x


class Encoder(keras.layers.Layer):
    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.norms = [keras.layers.LayerNormalization() for _ in range(2)]
        self.attention = keras.layers.MultiHeadAttention(4, width // 4)
        self.up = keras.layers.Dense(4 * width, "gelu")
        self.down = keras.layers.Dense(width)

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


def trained(model, loss, x, y, run_eagerly):
    model.compile("adam", loss, run_eagerly=run_eagerly)
    return lambda: model.train_on_batch(x, y)


def make_mlp(run_eagerly=True, blocks=BLOCKS, layers=LAYERS, change=""):
    inputs = x = keras.Input((WIDTH,))
    for _ in range(blocks):
        x = Block(layers)(x)
    model = keras.Model(inputs, keras.layers.Dense(CLASSES)(x))
    exec(change, {"model": model, "tf": tf})
    return trained(model, "mse", uniform([BATCH, WIDTH], 0), uniform([BATCH, CLASSES], 1),
                   run_eagerly)  # fmt: skip


def make_encoder(run_eagerly=True):
    inputs = keras.Input((64,), dtype="int32")
    x = keras.layers.Embedding(500, 32)(inputs)
    for _ in range(2):
        x = Encoder(32)(x)
    model = keras.Model(inputs, keras.layers.Dense(500)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    words = [uniform([4, 64], seed, 0, 500, tf.int32) for seed in range(2)]
    return trained(model, loss, *words, run_eagerly)


def make_tape():
    """A loop of one's own, which keeps its outputs."""
    model = keras.Sequential([Block(), Block()])
    for block in model.layers:
        block.build((None, WIDTH))
    weights = [weight for block in model.layers for weight in block.trainable_variables]
    optimizer = keras.optimizers.Adam()
    optimizer.build(weights)
    x, outputs = uniform([BATCH, WIDTH], 0), []

    def step():
        with tf.GradientTape() as tape:
            y = model(x)
            loss = tf.reduce_mean(y**2)
        optimizer.apply(tape.gradient(loss, weights), weights)
        outputs.append(y)
        return loss

    return step
