"""Keras models of five kinds, and what a step of theirs really takes."""

import gc
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import layers

from tensorlens.frameworks.tensorflow import cpu_counter

CLASSES = 10
STEPS = 6


def mlp() -> tuple[Any, int]:
    model = keras.Sequential(
        [
            keras.Input((784,)),
            layers.Dense(1024, activation="relu"),
            layers.Dense(1024, activation="relu"),
            layers.Dense(CLASSES),
        ]
    )
    return model, 64


def wide_mlp(width: int = 1024) -> tuple[Any, int]:
    """A network whose activations are as large as its weights."""
    hidden = [layers.Dense(width, activation="relu") for _ in range(4)]
    return keras.Sequential([keras.Input((width,)), *hidden, layers.Dense(CLASSES)]), width


def cnn_2d() -> tuple[Any, int]:
    model = keras.Sequential(
        [
            keras.Input((64, 64, 3)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(2),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(128, activation="relu"),
            layers.Dense(CLASSES),
        ]
    )
    return model, 32


def cnn_3d(
    shape: tuple[int, ...] = (32, 32, 32, 1),
    filters: tuple[int, ...] = (16, 32),
    units: int = 64,
    relu_apart: bool = False,
) -> tuple[Any, int]:
    """The network of the Keras example of 3-D image classification, in any size."""
    given = x = keras.Input(shape)
    for count in filters:
        if relu_apart:
            x = layers.Activation("relu")(layers.Conv3D(count, 3)(x))
        else:
            x = layers.Conv3D(count, 3, activation="relu")(x)
        x = layers.BatchNormalization()(layers.MaxPool3D(2)(x))
    x = layers.GlobalAveragePooling3D()(x)
    x = layers.Dropout(0.3)(layers.Dense(units, activation="relu")(x))
    x = layers.Dense(CLASSES)(x)
    return keras.Model(given, layers.Activation("linear", dtype="float32")(x)), 4


def _two_layers(kind: Any, steps: int) -> tuple[Any, int]:
    model = keras.Sequential(
        [
            keras.Input((steps, 64)),
            kind(256, return_sequences=True),
            kind(128),
            layers.Dense(CLASSES),
        ]
    )
    return model, 32


def lstm(steps: int = 100) -> tuple[Any, int]:
    return _two_layers(layers.LSTM, steps)


def gru(steps: int = 50) -> tuple[Any, int]:
    return _two_layers(layers.GRU, steps)


def gru_both_ways(steps: int = 50) -> tuple[Any, int]:
    model = keras.Sequential(
        [
            keras.Input((steps, 64)),
            layers.Bidirectional(layers.GRU(128, return_sequences=True)),
            layers.GlobalAveragePooling1D(),
            layers.Dense(CLASSES),
        ]
    )
    return model, 32


def transformer(blocks: int = 2) -> tuple[Any, int]:
    given = keras.Input((128,), dtype="int32")
    x = layers.Embedding(1000, 128)(given)
    for _ in range(blocks):
        attended = layers.MultiHeadAttention(4, 32)(x, x)
        x = layers.LayerNormalization()(layers.Add()([x, attended]))
        inner = layers.Dense(128)(layers.Dense(512, activation="gelu")(x))
        x = layers.LayerNormalization()(layers.Add()([x, inner]))
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(given, layers.Dense(CLASSES)(x)), 16


MODELS: dict[str, Callable[[], tuple[Any, int]]] = {
    "MLP": mlp,
    "wide MLP": wide_mlp,
    "2-D CNN": cnn_2d,
    "3-D CNN": cnn_3d,
    "LSTM": lstm,
    "GRU": gru,
    "GRU both ways": gru_both_ways,
    "transformer": transformer,
}


def loss() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def batch_for(model: Any, size: int) -> tuple[Any, Any]:
    spec = model.inputs[0]
    shape = (size, *spec.shape[1:])
    inputs = tf.zeros(shape, spec.dtype)
    if spec.dtype.startswith("float"):
        inputs = tf.random.normal(shape, dtype=spec.dtype)
    return inputs, tf.zeros((size,), tf.int32)


def measured(
    make: Callable[[], tuple[Any, int]], optimizer: str, eager: bool, steps: int = STEPS
) -> list[int]:
    """Return the peak of each step but the first: model, batch and optimizer included, bytes."""
    read = cpu_counter().reader()
    gc.collect()
    before = read()[0]
    model, size = make()
    model.compile(optimizer, loss(), run_eagerly=eager)
    data = [batch_for(model, size)]
    model.make_train_function()
    peaks = []
    for _ in range(steps):
        read()
        model.train_function(iter(data))
        peaks.append(read()[1] - before)
    return peaks[1:]
