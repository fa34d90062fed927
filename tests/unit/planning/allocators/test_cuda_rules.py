"""The caching allocator, rule by rule; every figure follows from the rules by hand."""

import pytest

from tensorlens.errors import UsageError
from tensorlens.planning.allocators import CachingAllocator, Level, SimulatedOutOfMemory
from tensorlens.records import Rules

KIB, MIB = 1 << 10, 1 << 20
BASE = 1 << 44
ADDRESS_SPACE = 52429 * 20 * MIB
"""1 TiB in whole units of 20 MiB, which large blocks of expandable segments are mapped in."""


def blocks(allocator):
    """Return, by segment, each block's bytes, a free one's as a negative number."""
    return [
        [-each.size if each.state == "inactive" else each.size for each in segment.blocks]
        for segment in allocator.segments()
    ]


@pytest.mark.parametrize(
    ("nbytes", "held"), [(1, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB - 1, MIB)]
)
def test_requests_are_rounded_up_to_512_bytes(nbytes, held):
    allocator = CachingAllocator()
    assert allocator.malloc(nbytes) == BASE
    assert blocks(allocator) == [[held, held - 2 * MIB]]
    figures = allocator.figures
    assert figures.allocated == Level(held, held)
    assert figures.requested == Level(nbytes, nbytes)
    assert figures.reserved == Level(2 * MIB, 2 * MIB)


def test_small_requests_share_a_segment_and_large_ones_another():
    allocator = CachingAllocator()
    assert [allocator.malloc(MIB), allocator.malloc(512), allocator.malloc(MIB)] == [
        BASE,
        BASE + MIB,
        BASE + 2 * MIB,
    ]
    assert allocator.malloc(3 * MIB) == BASE + 4 * MIB
    assert allocator.malloc(9 * MIB) == BASE + 7 * MIB
    assert allocator.malloc(10 * MIB) == BASE + 24 * MIB
    assert blocks(allocator) == [
        [MIB, 512, 512 - MIB],
        [MIB, -MIB],
        [3 * MIB, 9 * MIB, -8 * MIB],
        [10 * MIB],
    ]


def test_a_large_block_keeps_a_remainder_of_up_to_a_mebibyte():
    allocator = CachingAllocator()
    # 11 MiB takes a segment of 12, and all of it; 512 bytes less leaves more than 1 MiB
    allocator.malloc(11 * MIB)
    allocator.malloc(11 * MIB - 512)
    assert blocks(allocator) == [[12 * MIB], [11 * MIB - 512, -(MIB + 512)]]
    assert allocator.figures.allocated.current == 23 * MIB - 512
    assert allocator.figures.requested.current == 22 * MIB - 512


def test_the_smallest_block_that_fits_and_of_those_the_lowest():
    allocator = CachingAllocator()
    places = [allocator.malloc(size * MIB) for size in (16, 12, 14, 12)]
    for place in places:
        allocator.free(place)
    assert allocator.malloc(12 * MIB) == places[1]
    assert allocator.malloc(12 * MIB) == places[3]
    # 12.5 MiB fits the 14 and leaves 1.5 free
    assert allocator.malloc(12 * MIB + 512 * KIB) == places[2]
    assert allocator.malloc(1200 * KIB) == places[2] + 12 * MIB + 512 * KIB
    assert allocator.figures.reserved == Level(54 * MIB, 54 * MIB)


def test_freed_blocks_become_one_with_their_neighbours():
    allocator = CachingAllocator()
    places = [allocator.malloc(4 * MIB) for _ in range(5)]
    for number in (0, 2, 4):
        allocator.free(places[number])
    quarter = 4 * MIB
    assert blocks(allocator) == [[-quarter, quarter, -quarter, quarter, -quarter]]
    allocator.free(places[3])
    assert blocks(allocator) == [[-quarter, quarter, -12 * MIB]]
    allocator.free(places[1])
    assert blocks(allocator) == [[-20 * MIB]]
    figures = allocator.figures
    assert figures.allocated.current == 0
    assert figures.reserved.current == 20 * MIB


def test_segments_that_follow_each_other_stay_apart():
    allocator = CachingAllocator()
    first, second = allocator.malloc(10 * MIB), allocator.malloc(10 * MIB)
    assert second == first + 10 * MIB
    allocator.free(first)
    allocator.free(second)
    assert blocks(allocator) == [[-10 * MIB], [-10 * MIB]]


def test_empty_cache_keeps_what_is_partly_in_use():
    allocator = CachingAllocator()
    kept, small, whole = allocator.malloc(3 * MIB), allocator.malloc(1), allocator.malloc(30 * MIB)
    waiting = allocator.malloc(18 * MIB)
    for place in (small, whole, waiting):
        allocator.free(place)
    allocator.empty_cache()
    assert blocks(allocator) == [[3 * MIB, -17 * MIB]]
    assert allocator.figures.reserved == Level(20 * MIB, 70 * MIB)
    allocator.free(kept)
    allocator.empty_cache()
    assert allocator.segments() == () and allocator.figures.reserved.current == 0


def test_cached_segments_go_back_before_there_is_no_room():
    allocator = CachingAllocator(capacity=64 * MIB)
    first = allocator.malloc(30 * MIB)
    allocator.malloc(3 * MIB)
    allocator.free(first)
    # 50 of 64 MiB are reserved, 40 more have no room until the 30 are back
    assert allocator.malloc(40 * MIB) == BASE + 50 * MIB
    assert allocator.figures.reserved == Level(60 * MIB, 60 * MIB)
    with pytest.raises(SimulatedOutOfMemory, match=r"cuda:0 has no room for 18\.00 MiB"):
        allocator.malloc(18 * MIB)
    # the free part of the segment still serves
    assert allocator.malloc(17 * MIB) == BASE + 33 * MIB


def test_a_capacity_that_is_just_enough():
    allocator = CachingAllocator(capacity=20 * MIB)
    allocator.malloc(2 * MIB)
    assert allocator.figures.reserved.current == 20 * MIB
    with pytest.raises(SimulatedOutOfMemory):
        CachingAllocator(capacity=20 * MIB - 1).malloc(2 * MIB)


def test_blocks_too_large_to_be_split():
    allocator = CachingAllocator(Rules(max_split_size=32 * MIB), capacity=100 * MIB)
    place = allocator.malloc(40 * MIB)
    allocator.free(place)
    # 30 MiB is below the limit and may not take 40; 34 may, and keeps all of it
    assert allocator.malloc(30 * MIB) == BASE + 40 * MIB
    assert allocator.malloc(34 * MIB) == place
    assert allocator.figures.allocated.current == 70 * MIB


def test_a_block_too_large_for_a_request_that_is_not_split():
    allocator = CachingAllocator(Rules(max_split_size=32 * MIB))
    place = allocator.malloc(60 * MIB)
    allocator.free(place)
    assert allocator.malloc(40 * MIB) == BASE + 60 * MIB
    assert allocator.malloc(40 * MIB + 512) == place


def test_a_request_of_the_limit_itself_is_not_split():
    allocator = CachingAllocator(Rules(max_split_size=32 * MIB))
    place = allocator.malloc(50 * MIB)
    allocator.free(place)
    assert allocator.malloc(32 * MIB) == place
    assert blocks(allocator) == [[50 * MIB]]


def test_expandable_segments_grow_unit_by_unit():
    allocator = CachingAllocator(Rules(expandable_segments=True))
    first = allocator.malloc(15 * MIB)
    second = allocator.malloc(15 * MIB)
    # the address space is one: 20 MiB are mapped, then 20 more for the ten that are missing
    assert (first, second) == (BASE, BASE + 15 * MIB)
    assert blocks(allocator) == [[15 * MIB, 15 * MIB, -10 * MIB]]
    assert allocator.segments()[0].expandable
    # large blocks are split at 512 bytes, too
    assert allocator.malloc(10 * MIB - 512) == BASE + 30 * MIB
    assert blocks(allocator) == [[15 * MIB, 15 * MIB, 10 * MIB - 512, -512]]
    allocator.malloc(1)
    # small ones have an address space of their own, after that of the large ones
    assert allocator.malloc(1) == BASE + ADDRESS_SPACE + 512
    figures = allocator.figures
    assert figures.reserved == Level(42 * MIB, 42 * MIB)


def test_whole_units_of_expandable_segments_are_unmapped():
    allocator = CachingAllocator(Rules(expandable_segments=True))
    places = [allocator.malloc(25 * MIB) for _ in range(4)]
    assert allocator.figures.reserved.current == 100 * MIB
    allocator.free(places[1])
    allocator.free(places[2])
    # free from 25 to 75 MiB: the unit from 40 to 60 is whole
    allocator.empty_cache()
    assert blocks(allocator) == [[25 * MIB, -15 * MIB], [-15 * MIB, 25 * MIB]]
    assert allocator.figures.reserved.current == 80 * MIB
    # 40 MiB have room from 25 on once the unit is mapped again
    assert allocator.malloc(40 * MIB) == BASE + 25 * MIB
    assert blocks(allocator) == [[25 * MIB, 40 * MIB, -10 * MIB, 25 * MIB]]
    for place in (places[0], places[3], BASE + 25 * MIB):
        allocator.free(place)
    allocator.empty_cache()
    assert allocator.segments() == ()
    # its address space is given up
    assert allocator.malloc(25 * MIB) == BASE + ADDRESS_SPACE


def test_blocks_at_the_growing_end_of_an_expandable_segment_are_spared():
    allocator = CachingAllocator(Rules(expandable_segments=True))
    first, _, last = (allocator.malloc(size * MIB) for size in (25, 15, 20))
    allocator.free(first)
    allocator.free(last)
    # 20 MiB fit exactly at the end, which has address space to grow into
    assert allocator.malloc(20 * MIB) == first


def test_expandable_segments_without_room():
    allocator = CachingAllocator(Rules(expandable_segments=True), capacity=60 * MIB)
    place = allocator.malloc(50 * MIB)
    with pytest.raises(SimulatedOutOfMemory):
        allocator.malloc(11 * MIB)
    allocator.free(place)
    assert allocator.malloc(60 * MIB) == place
    assert allocator.figures.reserved == Level(60 * MIB, 60 * MIB)


def test_no_bytes_are_no_block():
    allocator = CachingAllocator()
    assert allocator.malloc(0) == 0
    allocator.free(0)
    assert allocator.figures.reserved.peak == 0


def test_impossible_requests():
    allocator = CachingAllocator()
    place = allocator.malloc(10 * MIB)
    with pytest.raises(UsageError, match="-1 bytes"):
        allocator.malloc(-1)
    for address in (place + 512, 4096):
        with pytest.raises(UsageError, match=rf"cuda:0: no block .* {address:#x}"):
            allocator.free(address)
    allocator.free(place)
    with pytest.raises(UsageError):
        allocator.free(place)


def test_peaks_begin_anew():
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(30 * MIB))
    allocator.malloc(3 * MIB)
    allocator.empty_cache()
    allocator.reset_peaks()
    figures = allocator.figures
    # 3 MiB were split off the free 30
    assert figures.allocated == figures.requested == Level(3 * MIB, 3 * MIB)
    assert figures.reserved == Level(30 * MIB, 30 * MIB)
