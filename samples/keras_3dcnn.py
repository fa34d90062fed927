"""How much memory does a Keras 3-D CNN need? The popular formula, tensorlens, and the truth.

    python samples/keras_3dcnn.py

The network is that of keras.io's "3D image classification from CT scans". With volumes of
150 x 300 x 150 x 3, a batch of 2 and mixed precision it took 7,991,122,432 bytes on a Tesla T4
(TensorFlow 2.8), where the formula that everybody copies said 2.38 GiB. Needs tensorflow; no GPU.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from keras import layers

import tensorlens
from tensorlens.keras import MemoryCallback
from tensorlens.units import format_bytes

T4_MEASURED = 7_991_122_432
CASE = {"optimizer": "adam", "loss": "sparse_categorical_crossentropy"}


def network(width, height, depth, channels=3, separate_activations=False):
    """Build the network; its activations may be layers of their own, which changes nothing."""
    x = inputs = keras.Input((width, height, depth, channels))
    for filters in (64, 64, 128, 256):
        if separate_activations:
            x = layers.Activation("relu")(layers.Conv3D(filters, 3)(x))
        else:
            x = layers.Conv3D(filters, 3, activation="relu")(x)
        x = layers.BatchNormalization()(layers.MaxPool3D(2)(x))
    x = layers.GlobalAveragePooling3D()(x)
    x = layers.Dropout(0.3)(layers.Dense(512, activation="relu")(x))
    outputs = layers.Activation("softmax", dtype="float32")(layers.Dense(10)(x))
    return keras.Model(inputs, outputs, name="3dcnn")


def will_it_fit_a_t4():
    """Estimate the case of the T4, without data and without a GPU."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        for separate in (False, True):
            model = network(150, 300, 150, separate_activations=separate)
            estimate = tensorlens.estimate(model, batch_size=2, card="t4", **CASE)
            if not separate:
                print(estimate)
                continue
            print("\nThe same network with each relu as a layer of its own:")
            for formula in estimate.formulas:
                print(f"  {formula.name:24} {format_bytes(formula.nbytes):>10}")
        error = estimate.peak_allocated / T4_MEASURED - 1
        print(f"  {'tensorlens':24} {format_bytes(estimate.peak_allocated):>10}")
        print(f"  {'measured on the T4':24} {format_bytes(T4_MEASURED):>10}   {error:+.1%}")
    finally:
        keras.mixed_precision.set_global_policy("float32")


def train_on_this_machine():
    """Train at a size that fits a CPU, and hold the estimate against what was measured."""
    model = network(48, 48, 48)
    model.compile(**CASE)
    estimate = tensorlens.estimate(model, batch_size=2, device="cpu", **CASE)

    volumes = np.random.rand(4, 48, 48, 48, 3).astype("float32")
    labels = np.random.randint(0, 10, 4)
    callback = MemoryCallback()
    model.fit(volumes, labels, batch_size=2, epochs=2, verbose=0, callbacks=[callback])
    print("\nWhat is left when it is done:\n")
    tensorlens.MemReporter(model).report(top=8)

    # the volumes that fit was given are in what was measured, and are no part of a step
    measured = callback.report.peak("cpu")[0] - volumes.nbytes
    error = estimate.peak_allocated / measured - 1
    print(
        f"\nestimated peak {format_bytes(estimate.peak_allocated)}, "
        f"measured {format_bytes(measured)}: {error:+.1%}"
    )


def main():
    """Show all of it."""
    will_it_fit_a_t4()
    print("\nTraining on this machine's CPU: 48 x 48 x 48 x 3, a batch of 2, float32\n")
    train_on_this_machine()


if __name__ == "__main__":
    main()
