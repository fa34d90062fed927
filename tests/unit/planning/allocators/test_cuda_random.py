"""Random requests under random settings: the allocator against a slow and plain one."""

import random

import pytest
from restored import restore
from slow_allocator import MIB, NoRoom, SlowAllocator

from tensorlens.planning.allocators import CachingAllocator, OutOfMemory, Settings

SIZES = (1, 512, 513, 4 * 1024, 300_000, MIB, MIB + 1, 3 * MIB, 9 * MIB, 10 * MIB, 25_000_001)


def setup(rng):
    """Return settings, capacity and the card's memory."""
    capacity = rng.choice([None, 40 * MIB, 90 * MIB, 200 * MIB, 333 * MIB + 7])
    large = rng.choice([20, 12, 33]) * MIB
    settings = Settings(
        expandable_segments=rng.random() < 0.4,
        max_split_size=rng.choice([None, None, large, 40 * MIB]),
        max_non_split_rounding=large,
        roundup_power2_divisions=rng.choice([(), (4,) * 16, (8, 0, 2, 4) + (1,) * 12]),
        large_segment_size=large,
    )
    return settings, capacity, capacity and rng.choice([None, capacity + 64 * MIB])


def compared(fast, slow):
    figures = fast.figures
    for name, level in slow.levels().items():
        found = getattr(figures, name)
        assert (name, found.current, found.peak) == (name, level, slow.peaks[name])
    segments = [
        (
            each.stream,
            each.kind == "small",
            each.expandable,
            [(block.address, block.size, block.state, block.requested) for block in each.blocks],
        )
        for each in fast.segments()
    ]
    assert segments == slow.stretches()


@pytest.mark.parametrize("seed", range(120))
def test_random_requests(seed):
    rng = random.Random(seed)
    settings, capacity, total = setup(rng)
    fast = CachingAllocator(settings, capacity=capacity, total=total)
    slow = SlowAllocator(settings, capacity, total)
    live = []
    for _ in range(150):
        chance = rng.random()
        if chance < 0.5:
            size = rng.choice(SIZES) if rng.random() < 0.5 else rng.randrange(60 * MIB)
            stream = rng.choice([0, 0, 0, 7])
            try:
                address = slow.malloc(size, stream)
            except NoRoom:
                with pytest.raises(OutOfMemory):
                    fast.malloc(size, stream)
            else:
                assert fast.malloc(size, stream) == address
                live.append(address)
        elif chance < 0.9 and live:
            address = live.pop(rng.randrange(len(live)))
            fast.free(address)
            slow.free(address)
        elif chance < 0.95:
            fast.empty_cache()
            slow.empty_cache()
        compared(fast, slow)


@pytest.mark.parametrize("seed", range(20))
def test_an_allocator_begun_from_another_ones_segments_goes_on_alike(seed):
    rng = random.Random(seed)
    first = CachingAllocator()
    live = []
    for _ in range(200):
        if rng.random() < 0.6 or not live:
            live.append(first.malloc(rng.randrange(1, 30 * MIB), rng.choice([0, 3])))
        else:
            first.free(live.pop(rng.randrange(len(live))))
    first.reset_peaks()
    second = CachingAllocator()
    restore(second, first.segments())
    for _ in range(200):
        assert second.figures == first.figures
        if rng.random() < 0.4 and live:
            address = live.pop(rng.randrange(len(live)))
            first.free(address)
            second.free(address)
        else:
            size, stream = rng.randrange(1, 30 * MIB), rng.choice([0, 3])
            live.append(first.malloc(size, stream))
            assert second.malloc(size, stream) == live[-1]
    assert second.segments() == first.segments()
