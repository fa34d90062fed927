"""TensorFlow's BFC allocator: every rule, with addresses and bytes worked out by hand."""

import pytest

from tensorlens.errors import UsageError
from tensorlens.planning.allocators import BFCAllocator, SimulatedOutOfMemory
from tensorlens.records import EventLog

KIB, MIB = 1 << 10, 1 << 20
FIRST = 1 << 44


def allocator(capacity=None):
    return BFCAllocator(capacity)


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


def test_empty_and_negative_requests():
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
    made = allocator(MIB)
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
    made = allocator(MIB)
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
    made = allocator(300 * MIB + spare)
    made.malloc(300 * MIB)
    assert made.figures.allocated.current == given


def test_a_free_chunk_becomes_one_with_its_free_neighbours():
    made = allocator(64 * KIB)
    kept = [made.malloc(4 * KIB) for _ in range(4)]
    made.free(kept[0])
    made.free(kept[2])
    assert sizes(made) == [
        [(4 * KIB, False), (4 * KIB, True), (4 * KIB, False), (4 * KIB, True), (48 * KIB, False)]
    ]
    made.free(kept[1])
    assert sizes(made) == [[(12 * KIB, False), (4 * KIB, True), (48 * KIB, False)]]
    made.free(kept[3])
    assert sizes(made) == [[(64 * KIB, False)]]
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
    assert len(made.segments()) == 3


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


def test_the_last_region_is_what_the_capacity_leaves():
    made = allocator(10 * MIB + 300)
    kept = made.malloc(6 * MIB)
    # of 2, 4, 8 MiB the last is enough; 2 MiB and 256 of 300 bytes are left of the capacity
    made.malloc(2 * MIB + 256)
    assert reserved(made) == 10 * MIB + 256
    with pytest.raises(SimulatedOutOfMemory):
        made.malloc(1)
    made.free(kept)
    with pytest.raises(SimulatedOutOfMemory, match=r"cuda:0 has no room for 9\.00 MiB"):
        made.malloc(9 * MIB)


def test_a_gpu_gives_free_regions_back_before_there_is_no_room():
    made = BFCAllocator(16 * MIB, collects=True)
    free, kept = made.malloc(6 * MIB), made.malloc(5 * MIB)
    assert sizes(made) == [[(8 * MIB, True)], [(8 * MIB, True)]]
    made.free(free)
    with pytest.raises(SimulatedOutOfMemory, match=r"no room for 9\.00 MiB"):
        made.malloc(9 * MIB)
    assert reserved(made) == 16 * MIB
    made.free(kept)
    made.malloc(9 * MIB)
    # the region of 16 MiB after those of 2, 4 and 8
    assert sizes(made) == [[(16 * MIB, True)]]


def test_less_than_a_first_region():
    made = allocator(MIB)
    made.malloc(4)
    assert reserved(made) == MIB
    nothing = allocator(255)
    with pytest.raises(SimulatedOutOfMemory):
        nothing.malloc(1)


def test_peaks_begin_anew():
    made = allocator()
    made.free(made.malloc(4 * MIB))
    made.malloc(256)
    made.reset_peaks()
    figures = made.figures
    assert figures.allocated.peak == figures.requested.peak == 256
    assert figures.reserved.peak == 4 * MIB


def test_torch_settings_do_not_apply():
    made = allocator()
    address = made.malloc(1)
    made.free(address)
    made.empty_cache()
    assert made.malloc(1) == address
    assert reserved(made) == 2 * MIB


def test_bfc_log():
    log = EventLog()
    made = BFCAllocator(6 * MIB + 512 * KIB, log=log, device="cpu")
    first = made.malloc(1500 * KIB)
    made.malloc(100 * KIB)
    made.free(first)
    with pytest.raises(SimulatedOutOfMemory):
        made.malloc(5 * MIB)
    made.write_segments()
    seen = [(event.action, event.address, event.nbytes) for event in log]
    assert seen == [
        ("segment_alloc", FIRST, 2 * MIB),
        # all of the 2 MiB, of which Tried to allocate 1500 KiB
        ("alloc", FIRST, 1500 * KIB),
        ("segment_alloc", FIRST + 2 * MIB, 4 * MIB),
        ("alloc", FIRST + 2 * MIB, 100 * KIB),
        ("free", FIRST, 1500 * KIB),
    ]
    assert log.held == {1: 2 * MIB}
    assert [segment.size for segment in log.segments] == [2 * MIB, 4 * MIB]
