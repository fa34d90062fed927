"""How much memory does a Keras 3-D CNN need? The popular formula, tensorlens, and the truth.

    python samples/keras_3dcnn.py

The network is that of keras.io's "3D image classification from CT scans". With volumes of
150 x 300 x 150 x 3, a batch of 2 and mixed precision it took 7,991,122,432 bytes on a Tesla T4
(TensorFlow 2.8), where the formula that everybody copies said 2.38 GiB. Needs tensorflow; no GPU.
``keras_3dcnn.ipynb`` is the same step by step, with what it printed.
"""

import gc
import math
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
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


def popular_formula(model, batch):
    """Add up the weights and one output of each layer: the sum that everybody copies."""
    total = 0
    for layer in model.layers:
        is_input = isinstance(layer, layers.InputLayer)
        size = 4 if is_input or layer.compute_dtype == "float32" else 2
        outputs = batch * math.prod(layer.output.shape[1:])
        total += size * (outputs + layer.count_params())
    return total


def before(model):
    """Show what there is without tensorlens: two totals of what has run, and the formula."""
    try:
        print("get_memory_info:", tf.config.experimental.get_memory_info("CPU:0"))
    except ValueError as error:  # TensorFlow has not always counted on the CPU
        print("get_memory_info:", error)
    for batch in (2, 4, 8, 16, 32):
        print(f"formula, batches of {batch:2}: {popular_formula(model, batch) / 2**30:7.3f} GiB")


def on_a_t4(separate_activations=False):
    """Build the network as it was on the T4: large volumes, mixed precision."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        return network(150, 300, 150, separate_activations=separate_activations)
    finally:
        keras.mixed_precision.set_global_policy("float32")


def will_it_fit_a_t4(model):
    """Estimate the case of the T4, without data and without a GPU."""
    return tensorlens.estimate(model, batch_size=2, card="t4", **CASE)


def why_the_formula_failed(estimate):
    """Show what is there at the peak, and whether the formula knows of it."""
    formula = popular_formula(on_a_t4(), 2)
    print(f"\nThe formula: {format_bytes(formula)}. At the peak there are")
    for role, nbytes in sorted(estimate.by_role.items(), key=lambda item: -item[1]):
        if nbytes >= 1 << 20:
            print(f"  {format_bytes(nbytes):>10}  {role}")
    print("It adds up what layers put out, and what they put out is gone where nothing in backward")
    print("needs it; of gradients, of the optimizer and of what kernels take it knows nothing.")
    apart = on_a_t4(separate_activations=True)
    same = will_it_fit_a_t4(apart).peak_allocated == estimate.peak_allocated
    print("\nThe same network with each relu as a layer of its own:")
    print(f"  {'formula':24} {format_bytes(popular_formula(apart, 2)):>10}")
    peak = format_bytes(estimate.peak_allocated)
    print(f"  {'tensorlens':24} {peak:>10}   {'the same' if same else 'another'} as before")
    error = estimate.peak_allocated / T4_MEASURED - 1
    print(f"  {'measured on the T4':24} {format_bytes(T4_MEASURED):>10}   {error:+.1%}")


def with_bounds(found):
    """Return an estimated figure in words; operations of a graph run in an order of their own."""
    low, likely, high = map(format_bytes, (found.low, found.point, found.high))
    return f"{likely}; {low} to {high} by the order in which operations run"


def train_on_this_machine():
    """Train at a size that fits a CPU, and hold the estimate against what was measured."""
    gc.collect()
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
    peaks = [epoch.devices["cpu"].peak - volumes.nbytes for epoch in callback.report.epochs]
    print(f"\nestimated peak {with_bounds(estimate.allocated)}")
    print(f"measured peaks of the epochs: {', '.join(map(format_bytes, peaks))}")


def main():
    """Show all of it."""
    model = on_a_t4()
    before(model)
    print()
    estimate = will_it_fit_a_t4(model)
    print(estimate)
    why_the_formula_failed(estimate)
    del model
    print("\nTraining on this machine's CPU: 48 x 48 x 48 x 3, a batch of 2, float32\n")
    train_on_this_machine()


if __name__ == "__main__":
    main()
