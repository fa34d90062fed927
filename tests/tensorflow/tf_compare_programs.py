"""Programs whose memory can be told by hand, or nearly so."""

import keras
import tensorflow as tf

WIDTH, LAYERS, BLOCKS = 64, 4, 6
PARAMETERS = BLOCKS * LAYERS
PARAMETER_BYTES = PARAMETERS * WIDTH * WIDTH * 4


class Block(keras.layers.Layer):
    """Layers that keep their outputs for backward, which are the inputs of the next."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = [keras.layers.Dense(WIDTH, "tanh", use_bias=False) for _ in range(LAYERS)]

    def build(self, shape):
        for layer in self.inner:
            layer.build(shape)

    def call(self, x):
        for layer in self.inner:
            x = layer(x)
        return x


def make_model(blocks):
    inputs = keras.Input((WIDTH,))
    x = inputs
    for _ in range(blocks):
        x = Block()(x)
    return keras.Model(inputs, x)


def make_step(batch=1024, blocks=BLOCKS):
    model = make_model(blocks)
    # operation by operation, or the order of what a graph runs would be another each time
    model.compile("sgd", "mse", run_eagerly=True)
    # not from NumPy: whether an array is copied depends on where its memory begins
    x = tf.random.stateless_uniform([batch, WIDTH], [0, 0])
    y = tf.random.stateless_uniform([batch, WIDTH], [1, 1])

    def step():
        return model.train_on_batch(x, y)

    return step


class Doubled(keras.layers.Layer):
    """It has no constructor of its own: Keras reads the signature of the one it inherits."""

    def call(self, x):
        return 2 * x


def make_layer_without_constructor():
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(WIDTH), Doubled()])
    model.compile("sgd", "mse")
    return model


def make_uneven_steps():
    sizes = iter((1, 3, 9, 2))

    def step():
        tf.fill([next(sizes) << 18], 1.0)

    return step


def make_large(batch):
    """Hold 4 MiB for each of the batch, and train something small."""
    tf.config.threading.set_inter_op_parallelism_threads(1)
    held = tf.ones([batch, 1 << 20])
    weight = tf.Variable([1.0])

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * held[0, :1])
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    return step
