"""Each public call about a program that has not run yet, once, on whichever torch there is."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tensorlens  # noqa: E402
from tensorlens.errors import UsageError  # noqa: E402
from tensorlens.frameworks.torch import installed_release  # noqa: E402
from tensorlens.planning.torch import SINCE  # noqa: E402
from tests.smoke import programs  # noqa: E402
from tests.smoke.programs import DATA, HIDDEN_BYTES, PARAMETERS  # noqa: E402

FORWARD = PARAMETERS + DATA + 2 * HIDDEN_BYTES
"""What ``up`` gives is there until relu is done."""
STEP = 3 * PARAMETERS + DATA + HIDDEN_BYTES
"""Weights, momentum and gradients; with the last gradient the one of what relu was given."""
NUMBERS = 2
"""The loss, and the gradient of it that autograd begins with."""
PIECE = 512
"""What a number takes on a card."""
SMALL, LARGE = 8_519_680, 32 << 20
"""Workspaces of cuBLAS."""

on_cards = pytest.mark.skipif(
    installed_release() < SINCE,
    reason="a card can be stood in for from torch 2.7 on",
)


def test_estimate_in_a_fresh_process_on_the_cpu():
    estimate = tensorlens.estimate(programs.make_forward, device="cpu")
    assert (estimate.peak_allocated, estimate.card) == (FORWARD, None)
    assert "peak allocated" in str(estimate) and estimate.explain()


def test_estimate_in_a_fresh_process_for_a_card():
    if installed_release() < SINCE:
        with pytest.raises(UsageError, match=r"from torch 2\.7 on"):
            tensorlens.estimate(programs.make_forward, card="a100")
        return
    estimate = tensorlens.estimate(programs.make_forward, card="a100")
    assert estimate.peak_allocated == FORWARD + SMALL
    assert estimate.fits("24 GiB")


def test_estimate_of_training_on_the_cpu_is_what_a_recording_counts(warm_interpreters):
    estimate = tensorlens.estimate(programs.make_step, device="cpu")
    assert estimate.peak_allocated == STEP + NUMBERS * 4
    roles = estimate.by_role
    assert roles["parameter"] == roles["optimizer"] == PARAMETERS
    before = tensorlens.MemReporter().snapshot().ledger["cpu"].allocated
    step = programs.make_step()
    with tensorlens.record() as recording:
        for _ in range(2):
            step()
    assert recording.peak("cpu").bytes - before == estimate.peak_allocated


def test_estimate_where_a_default_device_was_taken_back(warm_interpreters):
    torch.set_default_device("cpu")
    torch.set_default_device(None)
    estimate = tensorlens.estimate(programs.make_forward, device="cpu")
    assert estimate.peak_allocated == FORWARD


@on_cards
def test_estimate_of_training_on_a_card(warm_interpreters):
    estimate = tensorlens.estimate(programs.make_step, card="a100")
    # cuBLAS has a workspace for the thread of autograd too
    assert estimate.peak_allocated == STEP + NUMBERS * PIECE + 2 * SMALL


@on_cards
def test_estimate_of_a_card_with_a_large_workspace(warm_interpreters):
    estimate = tensorlens.estimate(programs.make_forward, card="h100")
    assert estimate.peak_allocated == FORWARD + LARGE


@on_cards
def test_estimate_of_a_recurrent_network(warm_interpreters):
    estimate = tensorlens.estimate(programs.make_lstm, card="a100")
    # four gates of 16 from 8 and from 16, two biases each, in one block; and 640 bytes of data
    packed = (4 * 16 * (8 + 16) + 2 * 4 * 16) * 4
    assert estimate.steps[0].allocated == packed + 2 * PIECE


@on_cards
@pytest.mark.parametrize(("card", "sums"), [("a100", 2 * 4 * 128 * 4), ("v100", 0)])
def test_estimate_of_attention(warm_interpreters, card, sums):
    estimate = tensorlens.estimate(programs.make_attention, card=card)
    query = 2 * 4 * 128 * 64 * 2
    # flash attention keeps a sum of each row, memory-efficient attention does not without a graph;
    # both return a seed and an offset
    assert estimate.peak_allocated == 2 * query + sums + 2 * PIECE


@on_cards
def test_estimate_cards_and_max_batch(warm_interpreters):
    table = tensorlens.estimate_cards(programs.make_forward, ["t4", "a100"])
    assert [each.peak_allocated for each in table.values()] == [FORWARD + SMALL] * 2
    largest = tensorlens.max_batch(programs.make_step, "2 GiB", card="t4", highest=64)
    assert largest == 64 and largest.reaches_end


def test_compare_measures_and_estimates_the_same(warm_interpreters):
    options = {"baseline": {}, "plain": {"arguments": {"momentum": 0.0}}}
    measured = tensorlens.compare(programs.make_step, options, repeats=1, steps=1)
    estimated = tensorlens.compare(programs.make_step, options, how="estimated", device="cpu")
    for comparison in (measured, estimated):
        assert comparison["baseline"].peak_allocated == STEP + NUMBERS * 4
        assert comparison["plain"].peak_allocated == STEP - PARAMETERS + NUMBERS * 4
        assert comparison.saved("plain") == PARAMETERS


def test_suggest_knows_what_momentum_costs(warm_interpreters):
    suggestions = tensorlens.suggest(programs.make_step)
    assert suggestions.peak == STEP + NUMBERS * 4
    assert suggestions[0].predicted_saving == PARAMETERS
