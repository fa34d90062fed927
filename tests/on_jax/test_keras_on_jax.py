"""Keras with JAX as its backend: its names, exact bytes by hand, and what JAX cannot tell."""

import importlib.util
from itertools import pairwise
from typing import Any

import pytest
from jax_programs import printed
from jax_programs import seen as seen_by

if importlib.util.find_spec("keras") is None:
    pytest.skip("keras is not installed", allow_module_level=True)

KERNEL, BIAS, LAST_KERNEL, LAST_BIAS = 8 * 4 * 4, 4 * 4, 4 * 2 * 4, 2 * 4
TRAINABLE = {
    "net/first/kernel": KERNEL,
    "net/first/bias": BIAS,
    "net/norm/gamma": BIAS,
    "net/norm/beta": BIAS,
    "net/last/kernel": LAST_KERNEL,
    "net/last/bias": LAST_BIAS,
}
BEFORE = {
    **{name: ["parameter", nbytes] for name, nbytes in TRAINABLE.items()},
    "net/norm/moving_mean": ["buffer", BIAS],
    "net/norm/moving_variance": ["buffer", BIAS],
    "seed_generator/seed_generator_state": ["buffer", 2 * 4],
    "loss/total": ["buffer", 4],
    "loss/count": ["buffer", 4],
    "Adam.iteration": ["optimizer", 4],
    "Adam.learning_rate": ["optimizer", 4],
}
AFTER = {
    **BEFORE,
    **{
        f"Adam.{name}.{slot}": ["optimizer", nbytes]
        for name, nbytes in TRAINABLE.items()
        for slot in ("momentum", "velocity")
    },
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    # XLA compiles most of it several times otherwise
    compiled = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("compiled")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }
    return seen_by("keras_on_jax.py", KERAS_BACKEND="jax", **compiled)


def named(rows: list[Any]) -> dict[str, Any]:
    assert len({name for name, *_ in rows}) == len(rows)
    return {name: [role, nbytes] for name, role, nbytes in rows}


def test_a_look_before_the_first_array_makes_no_device(seen: dict[str, Any]) -> None:
    initialized, tensors, notes = seen["untouched"]
    assert (initialized, tensors) == (False, 0)
    assert notes == ["JAX has made no device so far: there are no arrays"]
    assert seen["others"] == []


def test_weights_slots_and_states_have_kerass_names(seen: dict[str, Any]) -> None:
    assert named(seen["before"]) == BEFORE
    assert named(seen["after"]) == AFTER


def test_names_are_not_lost_while_fit_has_emptied_the_variables(seen: dict[str, Any]) -> None:
    assert {moment: emptied for moment, (_, emptied) in seen["looks"].items()} == {
        "batch 0 begins": False,
        "batch 0 ends": True,
        "batch 1 begins": True,
        "batch 1 ends": True,
        "validation": True,
        "epoch ends": False,
    }
    for rows, _ in seen["looks"].values():
        assert named(rows) == AFTER


def test_the_ledger_balances_and_fit_computes_the_same(seen: dict[str, Any]) -> None:
    difference, unnamed, allocated = seen["balance"]
    expected = sum(nbytes for _, nbytes in AFTER.values())
    assert (difference, unnamed) == (0, 0)
    assert allocated == expected == 704
    assert seen["born"] == ["trained"]
    assert seen["same"]


def test_metrics_that_a_model_lists_itself_and_wrapped_optimizers(seen: dict[str, Any]) -> None:
    assert named(seen["own"]) == {
        "own/dense/kernel": ["parameter", 8 * 2 * 4],
        "own/dense/bias": ["parameter", 2 * 4],
        "seen/total": ["buffer", 4],
        "seen/count": ["buffer", 4],
        "SGD.own/dense/kernel.momentum": ["optimizer", 8 * 2 * 4],
        "SGD.own/dense/bias.momentum": ["optimizer", 2 * 4],
        "SGD.iteration": ["optimizer", 4],
        "SGD.learning_rate": ["optimizer", 4],
        "LossScaleOptimizer.iteration": ["optimizer", 4],
        "LossScaleOptimizer.learning_rate": ["optimizer", 4],
        "LossScaleOptimizer.step_counter": ["optimizer", 4],
        "LossScaleOptimizer.dynamic_scale": ["optimizer", 4],
    }


def test_the_callback_tells_what_is_there_and_that_no_peak_is_known(seen: dict[str, Any]) -> None:
    assert [*seen["history"]] == ["memory/cpu"]
    levels = seen["history"]["memory/cpu"]
    # 12 batches, each of which keeps 25 numbers
    assert {b - a for a, b in pairwise(levels[1:])} == {12 * 25 * 4}
    assert seen["growth"] == [25 * 4]
    assert "cpu  peak n/a: JAX tells no peak of what it has on the CPU" in seen["printed"]
    assert "  Epoch  Batches  At the end     Change" in seen["printed"].splitlines()


def test_what_grows_is_told_with_its_line_and_its_holder(seen: dict[str, Any]) -> None:
    held = "leaks(): kept (local) -> list[4]"
    assert seen["leaks"] == [[400.0, "leaks.<locals>.step", held, [100]]]
    assert seen["healthy"] == 0


def test_what_cannot_be_had_is_one_line(seen: dict[str, Any]) -> None:
    assert seen["refused"] == [
        "JAX tells of no single allocation, so nothing of it can be recorded",
        "this Keras runs on jax, whose memory cannot be simulated: estimates are of Keras on"
        " tensorflow or torch; MemReporter(model).report() tells what XLA has planned for a step"
        " that ran",
    ]


NUMPY = """
import keras
import tensorlens

net = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
for ask in (
    lambda: tensorlens.record().__enter__(),
    lambda: tensorlens.LeakWatch().__enter__(),
    lambda: tensorlens.find_leaks(lambda step: None),
    lambda: tensorlens.estimate(net, batch_size=4),
):
    try:
        ask()
    except tensorlens.errors.UsageError as error:
        print(error)
print(*tensorlens.MemReporter(net).snapshot().notes, sep="; ")
"""


def test_a_keras_whose_backend_is_not_known_is_named() -> None:
    # Keras imports JAX for it, and computes with NumPy
    lines = printed("-c", NUMPY, KERAS_BACKEND="numpy").splitlines()
    why = "Keras runs on numpy, whose memory cannot be read"
    names = "import torch or tensorflow before"
    assert lines == [
        f"nothing to record: {names} record() starts; {why}",
        f"nothing to watch: {names} the watch starts; {why}",
        f"nothing to watch: {names} the watch starts; {why}",
        "this Keras runs on numpy, whose memory cannot be simulated: estimates are of Keras on"
        " tensorflow or torch",
        f"no framework has been imported; {why}",
    ]
