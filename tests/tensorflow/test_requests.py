"""A Keras model with each function that estimates, and each way to say the card."""

import keras
import pytest
from keras import layers

import tensorlens
from tensorlens.errors import UsageError
from tensorlens.units import format_bytes

T4 = 15_102 << 20
"""The memory of a Tesla T4, as torch printed it; shown as 14.75 GiB, which is a little more."""


@pytest.fixture(scope="module")
def model():
    found = keras.Sequential([keras.Input((1 << 20,)), layers.Dense(4)])
    found.compile("sgd", "mse")
    return found


def test_the_largest_batch_is_the_same_however_the_card_is_said(model):
    by_card = tensorlens.max_batch(model, card="t4", lowest=1000)
    assert by_card.capacity == T4
    for capacity in (T4, format_bytes(T4)):
        other = tensorlens.max_batch(model, capacity, card="Tesla T4", lowest=1000)
        assert (other, other.capacity) == (by_card, T4)
    assert by_card.estimate.fits
    assert by_card.estimates[by_card + 1].needed.point > T4 >= by_card.estimate.needed.point


def test_estimates_of_cards_are_those_of_each(model):
    cards = {"t4": "Tesla T4", "h100": "NVIDIA H100 80GB HBM3"}
    found = tensorlens.estimate_cards(model, [*cards], batch_size=2)
    assert [*found] == [*cards.values()]
    for short, name in cards.items():
        alone = tensorlens.estimate(model, card=short, batch_size=2)
        assert bool(found[name].fits) is bool(alone.fits) is True
        assert found[name].needed == alone.needed


def test_scaling_is_of_the_batch(model):
    found = tensorlens.scaling(model, values=(64, 128, 256), card="t4")
    peaks = {value: found.estimates[value].peak_allocated for value in (64, 128, 256)}
    # each sample has 1 Mi floats, and less than a KiB beside them
    for low, high in ((64, 128), (128, 256)):
        assert 0 <= peaks[high] - peaks[low] - ((high - low) << 22) < (high - low) << 10
    with pytest.raises(UsageError, match="sequence: of a Keras model the batch alone varies"):
        tensorlens.scaling(model, "sequence")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"card": "t44"}, 'no card is known as "t44"; nearest: t4'),
        ({"steps": 0}, "steps=0: it is a number, at least 1"),
        ({"batchsize": 2}, "batchsize: a Keras model has no such argument; nearest: batch_size"),
        ({"world_size": 2}, "arguments, script_args and world_size are for a make_step"),
    ],
)
def test_what_makes_no_sense_is_said_alike(model, given, said):
    for ask in (
        tensorlens.estimate,
        lambda of, card="t4", **more: tensorlens.estimate_cards(of, [card], **more),
        lambda of, card="t4", **more: tensorlens.max_batch(of, card=card, **more),
        tensorlens.scaling,
    ):
        with pytest.raises(UsageError) as caught:
            ask(model, **given)
        assert str(caught.value).startswith(said)
