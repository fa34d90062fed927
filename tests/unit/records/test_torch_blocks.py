"""What the allocator gave each block, against an allocator that knows."""

import random

import pytest
from caching_allocator import KIB, MIB, CachingAllocator
from torch_recordings import from_snapshot

from tensorlens.records import ALLOC, FREE, OOM, SEGMENT_ALLOC, SEGMENT_FREE, START, Rules

SMALL = [1, 500, 512, 513, 4 * KIB, 100 * KIB, 700 * KIB, MIB]
LARGE = [MIB + 1, 3 * MIB // 2, 2 * MIB, 5 * MIB + 77, 9 * MIB, 10 * MIB, 31 * MIB - 512]


def test_a_small_remainder_stays_with_its_block():
    allocator = CachingAllocator()
    allocator.malloc(19 * MIB)  # a segment of 20 MiB: the last MiB is not split off
    allocator.malloc(18 * MIB)  # 2 MiB are
    log = from_snapshot(allocator.snapshot()).log
    rows = [row for row, kind in enumerate(log.kind) if kind == ALLOC]
    assert [log.size[row] for row in rows] == [20 * MIB, 18 * MIB]
    assert log.held == {}


def test_freed_block_counts_with_the_remainder_that_was_not_split_off():
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(19 * MIB - 1))
    recording = from_snapshot(allocator.snapshot())
    log = recording.log
    assert list(log.kind) == [SEGMENT_ALLOC, ALLOC, FREE]
    assert log.size[1] == log.size[2] == 20 * MIB
    assert log.held == {}
    peak = recording.peak("cuda:0")
    assert (peak.bytes, peak.held, peak.reserved) == (20 * MIB, 20 * MIB, 20 * MIB)


def test_a_gap_too_short_for_a_block_belongs_to_the_one_before_it():
    allocator = CachingAllocator()
    first = allocator.malloc(9 * MIB)
    allocator.malloc(10 * MIB)  # of 11 MiB
    allocator.free(first)
    first = allocator.malloc(8 * MIB)  # its last MiB is not split off
    since = len(allocator.events)
    allocator.free(first)
    log = from_snapshot(allocator.snapshot(since)).log
    assert list(log.kind) == [START, START, FREE]
    assert {log.size[row] for row in range(2)} == {9 * MIB, 11 * MIB}


def test_a_gap_that_may_be_free_or_held_is_told_as_not_known():
    allocator = CachingAllocator()
    first = allocator.malloc(9 * MIB)
    since = len(allocator.events)
    allocator.free(first)
    # 11 MiB follow it: nothing tells whether up to 1 MiB of them were its own
    recording = from_snapshot(allocator.snapshot(since))
    assert recording.log.size[0] == 9 * MIB
    assert recording.origin.notes == (
        "cuda:0: what the allocator gave 1 blocks from before the trace is not known; they count"
        " as rounded",
    )


@pytest.mark.parametrize("seed", range(40))
def test_random_traces_agree_with_the_allocator(seed):
    chance = random.Random(seed)
    allocator = CachingAllocator()
    sizes = chance.choice([SMALL, LARGE, SMALL + LARGE])
    live: list[int] = []
    waiting: list[int] = []
    since, count = -1, 400
    before: dict[int, int] = {}
    reserved: dict[int, int] = {}
    for step in range(count):
        if step == count // 3:
            since, before = len(allocator.events), allocator.live()
        act = chance.random()
        if act < 0.5 or not live:
            live.append(allocator.malloc(chance.choice(sizes)))
        elif act < 0.93:
            address = live.pop(chance.randrange(len(live)))
            waits = chance.random() < 0.2
            allocator.free(address, waits=waits)
            waiting += [address] if waits else []
        elif act < 0.97:
            while waiting:
                allocator.complete(waiting.pop())
        else:
            allocator.empty_cache()
        reserved[len(allocator.events)] = allocator.reserved()
    recording = from_snapshot(allocator.snapshot(since))
    log = recording.log
    assert not [note for note in recording.origin.notes if "segments" in note]
    starts = {log.address[row]: row for row in range(len(log)) if log.kind[row] == START}
    assert starts.keys() == before.keys()
    unsure = 0
    for address, row in starts.items():
        assert log.size[row] <= before[address]
        unsure += log.size[row] != before[address]
    told = [note for note in recording.origin.notes if "not known" in note]
    assert unsure <= (int(told[0].split("gave ")[1].split()[0]) if told else 0)
    allocations = [row for row in range(len(log)) if log.kind[row] == ALLOC]
    truth = [size for number, size in allocator.given.items() if number >= since]
    assert [log.size[row] for row in allocations] == truth
    _check_levels(recording, reserved[len(allocator.events)])
    if not unsure:
        assert _highest(allocator, since, before) == max(_held_levels(log))


def _check_levels(recording, reserved):
    log = recording.log
    assert recording.at(len(log) - 1, "cuda:0").reserved == reserved
    assert sum(segment.size for segment in log.segments) == reserved


def _held_levels(log):
    level = 0
    for row, kind in enumerate(log.kind):
        if kind in (START, ALLOC):
            level += log.size[row]
        elif kind == FREE:
            level -= log.size[log.pair[row]]
        yield level


def _highest(allocator, since, before):
    live, level = dict(before), sum(before.values())
    top = level
    for number, event in enumerate(allocator.events[since:], since):
        if event["action"] == "alloc":
            live[event["addr"]] = allocator.given[number]
            level += allocator.given[number]
        elif event["action"] == "free_requested":
            level -= live.pop(event["addr"])
        top = max(top, level)
    return top


def expandable(*events):
    """A trace in an expandable segment whose first 20 MiB are mapped at the end."""
    blocks = [{"address": 0, "size": 20 * MIB, "requested_size": 0, "state": "inactive"}]
    segment = {"device": 0, "address": 0, "total_size": 20 * MIB, "is_expandable": True}
    trace = [
        {"action": action, "addr": address, "size": size, "time_us": time}
        for time, (action, address, size) in enumerate(events)
    ]
    return {"segments": [{**segment, "blocks": blocks}], "device_traces": [trace]}


def test_an_expandable_segment_splits_every_remainder_and_grows():
    recording = from_snapshot(
        expandable(
            ("segment_map", 0, 20 * MIB),
            ("alloc", 0, 19 * MIB + 512),
            ("segment_map", 20 * MIB, 20 * MIB),
            ("alloc", 19 * MIB + 512, 8 * MIB),
            ("free_requested", 19 * MIB + 512, 8 * MIB),
            ("free_completed", 19 * MIB + 512, 8 * MIB),
            ("segment_unmap", 20 * MIB, 20 * MIB),
            ("free_requested", 0, 19 * MIB + 512),
            ("free_completed", 0, 19 * MIB + 512),
        )
    )
    log = recording.log
    assert log.held == {}
    assert recording.origin.notes == ()
    assert list(log.kind) == [
        SEGMENT_ALLOC,
        ALLOC,
        SEGMENT_ALLOC,
        ALLOC,
        FREE,
        SEGMENT_FREE,
        FREE,
    ]
    peak = recording.peak("cuda:0")
    assert (peak.bytes, peak.held, peak.reserved) == (27 * MIB + 512,) * 2 + (40 * MIB,)
    assert recording.at(len(log) - 1).reserved == 20 * MIB


def test_settings_of_the_allocator_change_sizes():
    # from 1 MiB on in quarters of the power of two below: 1.25 MiB steps for 1 MiB to 2 MiB
    table = {str(1 << power): 4 if power == 0 else 0 for power in range(16)}
    rules = Rules.of({"roundup_power2_divisions": table, "max_split_size": 20 * MIB})
    assert rules.rounded(MIB + 1) == MIB + MIB // 4
    assert rules.rounded(MIB) == MIB
    assert rules.rounded(1200) == 1536  # up to 4 times 512 B it goes in steps of 512
    assert rules.rounded(2049) == 2560
    assert rules.rounded(2048) == 2048
    assert rules.rounded(3 * MIB + 1) == 3 * MIB + 512  # other intervals in steps of 512
    assert rules.rounded(0) == rules.rounded(511) == rules.rounded(512) == 512
    assert not rules.splits(20 * MIB, 5 * MIB, small=False)
    assert rules.splits(19 * MIB, 5 * MIB, small=False)
    assert Rules.of("nothing") == Rules.of({"max_split_size": -1}) == Rules.of(None) == Rules()


def test_a_failed_request_is_a_row_of_its_own():
    oom = {"action": "oom", "device_free": 3 * MIB, "size": 9 * MIB, "stream": 0, "time_us": 5}
    log = from_snapshot({"segments": [], "device_traces": [[oom]]}).log
    assert (list(log.kind), log.size[0], log.address[0]) == ([OOM], 9 * MIB, 3 * MIB)
