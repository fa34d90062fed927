"""Keras models that are made, compiled and trained in each step of a loop."""

import keras
import numpy

from tensorlens import find_leaks


def test_models_made_in_each_step_are_one_leak():
    x, y = numpy.zeros((4, 5), "float32"), numpy.zeros((4, 3), "float32")

    def step():
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
        model.compile("adam", "mse")
        model.fit(x, y, verbose=0)

    report = find_leaks(step, steps=3, warmup=1)
    (leak,) = report.leaks
    assert leak.path.startswith("TensorFlow's runtime")
    if {"parameter", "optimizer"} & {leak.role, *(each.role for each in leak.below)}:
        # of a model that was collected no name is left
        assert leak.advice.startswith("make the model once, before the loop")
    # the kernel and the bias, their two slots each
    assert leak.bytes_per_step >= 3 * (5 * 3 + 3) * 4
    # a group may be what hangs below some variables, and nothing else
    assert sum(each.bytes_per_step for each in leak.below) <= leak.bytes_per_step
    assert len([each for each in report.others if each.kind == "garbage"]) <= 3
    balance = report.balance["cpu"]
    assert balance.leaks == round(balance.steps * leak.bytes_per_step)
    # one leak and its lines, no page of chains
    assert len(str(report).splitlines()) < 60
