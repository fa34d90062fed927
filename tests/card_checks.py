"""What is asserted alike of every kind of target that is estimated for a card."""

import tensorlens
from tensorlens.units import format_bytes

T4 = 15_102 << 20
"""The memory of a Tesla T4, as torch printed it; shown as 14.75 GiB, which is a little more."""


def check_largest_batch(target, lowest):
    """Ask for the largest batch on a T4 in each way to say the card."""
    by_card = tensorlens.max_batch(target, card="t4", lowest=lowest)
    assert by_card.capacity == T4
    for capacity in (T4, format_bytes(T4)):
        other = tensorlens.max_batch(target, capacity, card="Tesla T4", lowest=lowest)
        assert (other, other.capacity) == (by_card, T4)
    assert by_card.estimate.fits
    assert by_card.estimates[by_card + 1].needed.point > T4 >= by_card.estimate.needed.point
