"""Requests that are made again."""

from tensorlens.planning.allocators import CachingAllocator, Journal, Settings

MIB = 1 << 20


def test_the_least_capacity_is_below_what_is_reserved_without_an_end():
    journal = Journal()
    journal.free(journal.malloc(30 * MIB))
    journal.free(journal.malloc(40 * MIB))
    journal.malloc(3 * MIB)
    assert len(journal) == 5
    figures = journal.replay(CachingAllocator()).figures
    # the 3 MiB come out of the 30; with 40 in all the 30 go back for the 40
    assert figures.reserved.peak == 70 * MIB
    assert figures.allocated.peak == journal.least_capacity() == 40 * MIB
    # to more than fits in a step: the next multiple of it
    assert journal.least_capacity(step=32 * MIB) == 64 * MIB


def test_other_settings_need_another_capacity():
    journal = Journal()
    kept = [journal.malloc(30 * MIB) for _ in range(2)]
    journal.malloc(11 * MIB)
    journal.free(kept[0])
    journal.free(kept[1])
    journal.malloc(60 * MIB)
    # 60 MiB in one piece: 12 are in use, the two segments of 30 go back
    assert journal.least_capacity() == 72 * MIB
    # mapped in units of 20: 71 MiB in use; behind the 11 that follow the free 60
    assert journal.least_capacity(Settings(expandable_segments=True)) == 80 * MIB


def test_nothing_needs_nothing():
    assert Journal().least_capacity() == 0


def test_streams_and_empty_caches_are_made_again():
    journal = Journal()
    journal.free(journal.malloc(10 * MIB, 4))
    journal.malloc(10 * MIB)
    assert journal.replay(CachingAllocator()).figures.reserved.peak == 20 * MIB
    # where there is no room, what the other stream has cached goes back
    assert journal.least_capacity() == 10 * MIB
    journal.empty_cache()
    assert journal.replay(CachingAllocator()).figures.reserved.current == 10 * MIB
