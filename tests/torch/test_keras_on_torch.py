"""Keras with torch as its backend: its names, exact bytes by hand, and ``MemoryCallback``."""

import importlib.util
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import warm

if importlib.util.find_spec("keras") is None:
    pytest.skip("keras is not installed", allow_module_level=True)

PROGRAM = Path(__file__).with_name("keras_on_torch.py")
KERNEL, BIAS, LAST_KERNEL, LAST_BIAS = 8 * 4 * 4, 4 * 4, 4 * 2 * 4, 2 * 4
TRAINABLE = {
    "net/first/kernel": KERNEL,
    "net/first/bias": BIAS,
    "net/norm/gamma": BIAS,
    "net/norm/beta": BIAS,
    "net/last/kernel": LAST_KERNEL,
    "net/last/bias": LAST_BIAS,
}


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_BACKEND", "torch")
        patch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
        interpreter = warm.python(keras=True)
        done = subprocess.run(
            [*interpreter, str(PROGRAM), *interpreter],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_weights_gradients_and_slots_have_kerass_names(seen: dict[str, Any]) -> None:
    expected = {
        **{name: ["parameter", nbytes] for name, nbytes in TRAINABLE.items()},
        **{f"{name}.grad": ["gradient", nbytes] for name, nbytes in TRAINABLE.items()},
        **{
            f"Adam.{name}.{slot}": ["optimizer", nbytes]
            for name, nbytes in TRAINABLE.items()
            for slot in ("momentum", "velocity")
        },
        "net/norm/moving_mean": ["buffer", BIAS],
        "net/norm/moving_variance": ["buffer", BIAS],
        "Adam.iteration": ["optimizer", 4],
        "Adam.learning_rate": ["optimizer", 4],
        "loss/total": ["buffer", 4],
        "loss/count": ["buffer", 4],
    }
    assert {name: [role, nbytes] for name, role, nbytes, _ in seen["adam"]} == expected
    assert seen["unnamed"] == 0


def test_recordings_name_layers_and_the_optimizers_step(seen: dict[str, Any]) -> None:
    assert {"net/first", "net/norm", "net/last"} <= {*seen["modules"], *seen["backward_modules"]}
    assert not [each for each in seen["modules"] if "_layers" in each or "_functional" in each]
    # at least the scaled gradients of 8 x 500 weights
    assert seen["phases"] >= 8 * 500 * 4


def test_slots_of_optimizers_that_do_it_their_own_way(seen: dict[str, Any]) -> None:
    scalars = {"iteration": 4, "learning_rate": 4}
    assert seen["Nadam"] == {
        "Nadam.o/d/kernel.momentum": 64,
        "Nadam.o/d/kernel.velocity": 64,
        "Nadam.o/d/bias.momentum": 8,
        "Nadam.o/d/bias.velocity": 8,
        "Nadam.u_product": 4,
        **{f"Nadam.{name}": nbytes for name, nbytes in scalars.items()},
    }
    # rows and columns of a kernel of 8 x 2; of a bias neither, but one number each
    assert seen["Adafactor"] == {
        "Adafactor.o/d/kernel.r": 8 * 4,
        "Adafactor.o/d/kernel.c": 2 * 4,
        "Adafactor.o/d/kernel.velocity": 64,
        "Adafactor.o/d/bias.r": 4,
        "Adafactor.o/d/bias.c": 4,
        "Adafactor.o/d/bias.velocity": 8,
        **{f"Adafactor.{name}": nbytes for name, nbytes in scalars.items()},
    }
    assert seen["Muon"] == {
        "Muon.o/d/kernel.momentum": 64,
        "Muon.o/d/bias.momentum": 8,
        "Muon.o/d/bias.velocity": 8,
        **{f"Muon.{name}": nbytes for name, nbytes in scalars.items()},
    }
    assert seen["LossScaleOptimizer"] == {
        "LossScaleOptimizer.step_counter": 4,
        "LossScaleOptimizer.dynamic_scale": 4,
        "SGD.o/d/kernel.momentum": 64,
        "SGD.o/d/bias.momentum": 8,
        **{f"LossScaleOptimizer.{name}": nbytes for name, nbytes in scalars.items()},
        **{f"SGD.{name}": nbytes for name, nbytes in scalars.items()},
    }


def test_nested_layers_and_modules(seen: dict[str, Any]) -> None:
    assert seen["mixed"] == {
        "wrapper.module.fc.weight": ["parameter", 8 * 3 * 4],
        "wrapper.module.fc.bias": ["parameter", 3 * 4],
        "inside/kernel": ["parameter", 8 * 5 * 4],
        "inside/bias": ["parameter", 5 * 4],
        "fc.weight": ["parameter", 5 * 4],
        "fc.bias": ["parameter", 4],
    }
    assert seen["second names"] == []


def test_lines_of_a_model_are_those_of_call(seen: dict[str, Any]) -> None:
    # two results of 4 x 16, and nothing that autograd keeps besides
    assert seen["lines"] == ["Net.call", [4 * 16 * 4, 4 * 16 * 4]]
    ((name, *rest),) = seen["out"]
    assert name.endswith(": out")
    assert rest == ["activation", 4 * 16 * 4, None]


def test_history_and_other_callbacks_get_the_figures(seen: dict[str, Any]) -> None:
    history = seen["history"]
    keys = ["memory/cpu", "memory/cpu_peak", "val_memory/cpu_peak"]
    assert [key for key in history if "memory" in key] == keys
    assert all(len(history[key]) == 6 for key in keys)
    logged, batch = seen["logged"]
    assert {*keys, "loss", "val_loss"} == {*logged}
    assert batch == ["memory/cpu", "memory/cpu_peak"]
    # 12 batches an epoch keep a tensor of 25 numbers each
    steps = [b - a for a, b in zip(history["memory/cpu"], history["memory/cpu"][1:], strict=False)]
    # the first validation makes what it counts with, once
    assert steps[1:] == [12 * 100] * 4


def test_epochs_count_as_in_keras_and_peaks_have_their_batch(seen: dict[str, Any]) -> None:
    assert [each[:2] for each in seen["epochs"]] == [[number, 12] for number in range(3, 9)]
    for _, _, peak, batches in seen["epochs"]:
        # 40 MB at the beginning of the second batch, after the first one's end
        assert 40_000_000 < peak < 40_100_000
        assert batches == [1, 1]


def test_growth_is_exact(seen: dict[str, Any]) -> None:
    assert seen["growth"] == 100.0
    text = " ".join(seen["printed"].split())
    assert "Memory of fit: 6 epochs, 72 batches" in text
    assert "grows by 100 B per batch, seen over 72 batches" in text
    assert len(seen["largest"]) == 5
    assert any("net/first/kernel" in text for _, text in seen["largest"])


def test_evaluate_and_predict_are_followed_and_all_is_put_back(seen: dict[str, Any]) -> None:
    assert seen["evaluate"] == ["evaluate", 1, "Memory of evaluate: 1 batch"]
    assert seen["predict"] == ["predict", 1, "Memory of predict: 1 batch"]
    assert seen["restored"] == ["function"] * 3


def test_without_batches_keras_sees_its_own_hooks(seen: dict[str, Any]) -> None:
    assert seen["default hooks"] == [True] * 3
    assert seen["without batches"] == [0, ["loss", "memory/cpu", "memory/cpu_peak"]]


def test_a_failure_inside_is_one_line_and_the_fit_goes_on(seen: dict[str, Any]) -> None:
    lines, epochs = seen["broken"]
    assert epochs == 2
    assert lines == [
        "tensorlens: MemoryCallback measures no more: TypeError: 'NoneType' object is not callable"
    ]


def test_out_of_memory_says_which_batch_it_was(seen: dict[str, Any]) -> None:
    kind, first, where = seen["oom"]
    assert kind == "RuntimeError"
    assert "out of memory" in first
    assert f"{4 << 50:,} B" in first
    assert where.startswith("tensorlens: it was batch 3 of epoch 1 of fit; before it the peak was ")
    assert seen["oom names"] is True
    assert seen["oom report"] == [2, False]
    assert seen["oom restored"] == "function"
    assert seen["after oom"] == [12, True]


def test_estimates_of_functions_are_the_measured_peaks(
    seen: dict[str, Any],
) -> None:
    for name in ("own", "attention"):
        estimated, measured = seen[name]
        assert abs(estimated - measured) <= 0.03 * measured, (name, estimated, measured)
    # 100 x 200 and 200 x 2 with biases, and a scale; rmsprop keeps one number for each
    weights = 4 * (100 * 200 + 200 + 200 + 200 * 2 + 2)
    assert seen["estimate roles"]["parameter"] == weights
    # and how many steps there were, and how large they are
    assert seen["estimate roles"]["optimizer"] == weights + 8


def test_an_estimate_of_a_model_object_asks_for_a_function(seen: dict[str, Any]) -> None:
    assert seen["estimate of an object"] == (
        "this Keras runs on torch: give a function that builds and returns the compiled model:"
        ' estimate("train.py:make_model", batch_size=32)'
    )


def test_leaks_are_found_as_in_torch(seen: dict[str, Any]) -> None:
    count, (path,) = seen["leaks"]
    assert count == 0
    assert path.startswith("leaks(): kept (local) -> list[")
