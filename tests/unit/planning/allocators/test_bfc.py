"""TensorFlow's BFC allocator: every rule, with addresses and bytes worked out by hand."""

import pytest

from tensorlens.errors import UsageError
from tensorlens.planning.allocators import (
    BFCAllocator,
    BFCSettings,
    Journal,
    OutOfMemory,
    least_limit,
)
from tensorlens.records.events import EventLog

KIB, MIB = 1 << 10, 1 << 20
FIRST = 1 << 44


def allocator(limit=None, *, capacity=None, **options):
    return BFCAllocator(BFCSettings(limit, **options), capacity=capacity)


def one_region(nbytes, **options):
    return allocator(nbytes, allow_growth=False, **options)


def sizes(made):
    """The chunks of each region: bytes, and whether they are handed out."""
    return [
        [(block.size, block.state != "inactive") for block in segment.blocks]
        for segment in made.segments()
    ]


def reserved(made):
    return made.figures.reserved.current


def test_requests_are_rounded_up_to_256_bytes():
    made = allocator()
    assert made.malloc(1) == FIRST
    assert made.malloc(256) == FIRST + 256
    assert made.malloc(257) == FIRST + 512
    assert made.malloc(4) == FIRST + 1024
    figures = made.figures
    assert figures.requested.current == 1 + 256 + 257 + 4
    assert figures.allocated.current == 256 + 256 + 512 + 256
    assert figures.active == figures.allocated


def test_nothing_and_less_than_nothing():
    made = allocator()
    assert made.malloc(0) == 0
    made.free(0)
    assert reserved(made) == 0
    with pytest.raises(UsageError, match="cannot allocate -1 bytes"):
        made.malloc(-1)
    with pytest.raises(UsageError, match="no block is handed out at address 0x5"):
        made.free(5)
    address = made.malloc(8)
    made.free(address)
    with pytest.raises(UsageError):
        made.free(address)


def test_the_smallest_chunk_that_fits_and_of_equal_ones_the_lowest():
    made = one_region(MIB)
    addresses = [made.malloc(kib * KIB) for kib in (8, 1, 4, 1, 6, 1, 4, 1)]
    for index in (6, 0, 4, 2):
        made.free(addresses[index])
    # free: 8 at 0, 4 at 9, 6 at 14, 4 at 21, and the rest from 26 on
    assert made.malloc(3 * KIB) == FIRST + 9 * KIB
    assert made.malloc(3 * KIB) == FIRST + 21 * KIB
    assert made.malloc(3 * KIB) == FIRST + 14 * KIB
    assert made.malloc(5 * KIB) == FIRST
    assert made.malloc(5 * KIB) == FIRST + 26 * KIB


def test_a_chunk_of_less_than_twice_the_request_is_not_split():
    made = one_region(MIB)
    first = made.malloc(8 * KIB)
    made.malloc(KIB)
    made.free(first)
    assert made.malloc(4 * KIB + 1) == first
    # 8192 bytes are less than twice 4352: the whole chunk counts
    assert made.figures.allocated.current == 8 * KIB + KIB
    assert made.figures.requested.current == 4 * KIB + 1 + KIB
    made.free(first)
    assert made.malloc(4 * KIB) == first
    assert made.figures.allocated.current == 4 * KIB + KIB
    assert made.figures.allocated.peak == 9 * KIB
    assert made.malloc(4 * KIB) == first + 4 * KIB


@pytest.mark.parametrize(
    ("spare", "given"), [(128 * MIB - 256, 428 * MIB - 256), (128 * MIB, 300 * MIB)]
)
def test_a_chunk_exceeds_its_request_by_less_than_128_mib(spare, given):
    made = one_region(300 * MIB + spare)
    made.malloc(300 * MIB)
    assert made.figures.allocated.current == given


@pytest.mark.parametrize(("spare", "given"), [(9 * MIB, 99 * MIB), (10 * MIB, 90 * MIB)])
def test_the_fragmentation_fraction_takes_the_place_of_128_mib(spare, given):
    limit = 90 * MIB + spare
    made = one_region(limit, fragmentation_fraction=10 * MIB / limit)
    made.malloc(90 * MIB)
    assert made.figures.allocated.current == given


def test_a_free_chunk_becomes_one_with_its_free_neighbours():
    made = one_region(64 * KIB)
    kept = [made.malloc(4 * KIB) for _ in range(4)]
    made.free(kept[0])
    made.free(kept[2])
    assert sizes(made) == [
        [(4 * KIB, False), (4 * KIB, True), (4 * KIB, False), (4 * KIB, True), (48 * KIB, False)]
    ]
    assert made.figures.inactive_split.current == 56 * KIB
    made.free(kept[1])
    assert sizes(made) == [[(12 * KIB, False), (4 * KIB, True), (48 * KIB, False)]]
    assert made.fragmentation().largest_free == 48 * KIB
    made.free(kept[3])
    assert sizes(made) == [[(64 * KIB, False)]]
    # nothing of the region is in use
    assert made.figures.inactive_split.current == 0
    assert made.malloc(64 * KIB) == FIRST


def test_regions_begin_with_2_mib_and_double():
    made = allocator()
    made.malloc(1)
    assert reserved(made) == 2 * MIB
    made.malloc(2 * MIB)
    assert reserved(made) == (2 + 4) * MIB
    made.malloc(3 * MIB)
    assert reserved(made) == (2 + 4 + 8) * MIB
    # 4 MiB hold 2 and 2, 8 hold 3 and 5
    made.malloc(MIB)
    assert [len(segment.blocks) for segment in made.segments()] == [2, 2, 2]
    assert made.figures.segments.current == 3


def test_a_region_that_a_request_has_made_larger_is_not_doubled_after_it():
    made = allocator()
    made.malloc(17 * MIB)
    # 2, 4, 8, 16, 32: and all of it is given out, as it is less than twice the request
    assert reserved(made) == made.figures.allocated.current == 32 * MIB
    made.malloc(MIB)
    assert reserved(made) == (32 + 32) * MIB
    made.malloc(40 * MIB)
    assert reserved(made) == (64 + 64) * MIB


def test_chunks_of_regions_side_by_side_stay_apart():
    made = allocator()
    small, large = made.malloc(2 * MIB), made.malloc(4 * MIB)
    assert large == small + 2 * MIB
    made.free(small)
    made.free(large)
    assert sizes(made) == [[(2 * MIB, False)], [(4 * MIB, False)]]
    made.malloc(6 * MIB)
    assert reserved(made) == (2 + 4 + 8) * MIB


def test_the_last_region_is_what_the_limit_leaves():
    made = allocator(10 * MIB + 300)
    kept = made.malloc(6 * MIB)
    # of 2, 4, 8 MiB the last is enough; 2 MiB and 256 of 300 bytes are left of the limit
    made.malloc(2 * MIB + 256)
    assert reserved(made) == 10 * MIB + 256
    with pytest.raises(OutOfMemory) as caught:
        made.malloc(1)
    assert (caught.value.allocated, caught.value.reserved) == (10 * MIB + 256, 10 * MIB + 256)
    assert caught.value.largest_free == 0
    made.free(kept)
    with pytest.raises(OutOfMemory) as caught:
        made.malloc(9 * MIB)
    assert caught.value.nbytes == 9 * MIB
    assert caught.value.largest_free == 8 * MIB
    assert str(caught.value) == (
        "cuda:0 has no room for 9.00 MiB: of 10.00 MiB 2.00 MiB are allocated and 8.00 MiB are held"
        " and free, 8.00 MiB of it in one piece"
    )
    assert made.figures.ooms == 2


def test_without_growth_one_region_is_the_whole_limit():
    made = one_region(100 * MIB + 1)
    assert reserved(made) == 0
    made.malloc(1)
    # the limit's last, broken 256 bytes are left out
    assert reserved(made) == 100 * MIB
    with pytest.raises(OutOfMemory):
        made.malloc(100 * MIB)


def test_less_than_a_first_region():
    made = allocator(MIB)
    made.malloc(4)
    assert reserved(made) == MIB
    nothing = allocator(255)
    with pytest.raises(OutOfMemory):
        nothing.malloc(1)


def test_nine_tenths_are_tried_where_the_system_has_less():
    made = allocator(100 * MIB, capacity=75 * MIB, allow_growth=False)
    made.malloc(MIB)
    # 100 MiB -> 94371840 -> 84934656 -> 76441190.4, in multiples of 256 76441344, and there are
    # 78643200
    assert reserved(made) == 76_441_344
    made.malloc(76_441_344 - MIB)
    made.malloc(MIB)
    # from what the limit leaves down to less than the 2201856 that the system has left
    tried = 100 * MIB - 76_441_344
    while tried > 75 * MIB - 76_441_344:
        tried = -(-(tried * 9 // 10) // 256) * 256
    assert reserved(made) == 76_441_344 + tried
    with pytest.raises(OutOfMemory):
        made.malloc(MIB)


def test_what_cannot_get_smaller_fails():
    # 2304 bytes are nine times 256, and nine tenths of them, rounded up, 2304 again
    made = allocator(MIB, capacity=2000)
    with pytest.raises(OutOfMemory):
        made.malloc(1)
    assert allocator(MIB, capacity=2304).malloc(1) == FIRST


def test_unused_regions_go_back_before_a_request_fails():
    kept = allocator(16 * MIB)
    collected = allocator(16 * MIB, garbage_collection=True)
    for made in (kept, collected):
        first, second, third = (made.malloc(mib * MIB) for mib in (2, 4, 8))
        assert made.figures.segments.current == 3
        made.free(first)
        made.free(third)
    with pytest.raises(OutOfMemory):
        kept.malloc(10 * MIB)
    # 16 MiB less the 4 in use; the regions of 2 and 8 are gone
    assert collected.malloc(10 * MIB) == FIRST + 14 * MIB
    assert sizes(collected) == [[(4 * MIB, True)], [(12 * MIB, True)]]
    assert collected.figures.retries == 1
    assert collected.figures.reserved.peak == 16 * MIB
    collected.free(second)


def test_regions_stay_where_giving_them_back_is_not_enough():
    made = allocator(16 * MIB, garbage_collection=True)
    first, _, _ = (made.malloc(mib * MIB) for mib in (2, 4, 8))
    made.free(first)
    with pytest.raises(OutOfMemory):
        made.malloc(5 * MIB)
    assert made.figures.segments.current == 3
    assert made.figures.retries == 0
    # a region that is partly in use stays too
    made.malloc(MIB)
    with pytest.raises(OutOfMemory):
        made.malloc(3 * MIB)
    assert made.figures.segments.current == 3


def test_peaks_begin_anew():
    made = allocator()
    made.free(made.malloc(4 * MIB))
    made.malloc(256)
    made.reset_peaks()
    figures = made.figures
    assert figures.allocated.peak == figures.requested.peak == 256
    assert figures.reserved.peak == 4 * MIB


def test_nothing_of_torch_changes_anything():
    made = allocator()
    address = made.malloc(1, 7)
    made.record_stream(address, 3)
    made.free(address)
    made.empty_cache(time=0)
    made.synchronize()
    assert made.malloc(1, 0) == address
    assert reserved(made) == 2 * MIB


def test_what_the_log_says():
    log = EventLog()
    made = BFCAllocator(BFCSettings(6 * MIB + 512 * KIB), log=log, device="cpu")
    first = made.malloc(1500 * KIB)
    made.malloc(100 * KIB, time=9_000_000)
    made.free(first)
    with pytest.raises(OutOfMemory):
        made.malloc(5 * MIB)
    made.write_segments()
    seen = [(event.action, event.address, event.nbytes) for event in log]
    assert seen == [
        ("segment_alloc", FIRST, 2 * MIB),
        # all of the 2 MiB, of which 1500 KiB were asked for
        ("alloc", FIRST, 1500 * KIB),
        ("segment_alloc", FIRST + 2 * MIB, 4 * MIB),
        ("alloc", FIRST + 2 * MIB, 100 * KIB),
        ("free", FIRST, 1500 * KIB),
        ("oom", 512 * KIB, 5 * MIB),
    ]
    assert log.held == {1: 2 * MIB}
    assert [segment.size for segment in log.segments] == [2 * MIB, 4 * MIB]


def test_the_least_limit():
    journal = Journal()
    journal.free(journal.malloc(30 * MIB))
    kept = journal.malloc(20 * MIB)
    journal.malloc(8 * MIB)
    journal.free(kept)
    # with growth and without an end: 32 MiB, all for the 30, then for the 20; then 32 more
    assert journal.replay(allocator()).figures.reserved.peak == 64 * MIB
    # 20 are given all 32: the 8 need as much again, for which 8 will do
    assert least_limit(journal, step=MIB) == 40 * MIB
    # of one region the 20 MiB are split off only if it has 40
    assert least_limit(journal, BFCSettings(1, allow_growth=False), step=MIB) == 40 * MIB
    assert least_limit(Journal()) == 0


@pytest.mark.parametrize("options", [{"allow_growth": False}, {"fragmentation_fraction": 0.1}])
def test_what_needs_a_limit(options):
    with pytest.raises(UsageError, match="without a limit"):
        BFCSettings(**options)
    with pytest.raises(UsageError, match="-1 bytes"):
        BFCSettings(-1)
