"""Changes to logs made by hand, and what their peaks would be."""

import sys

import pytest

from tensorlens import Recording, suggest
from tensorlens.errors import UsageError
from tensorlens.planning import RepeatedBlock
from tensorlens.planning.suggest import (
    Call,
    RecordedSteps,
    Replay,
    checkpoints,
    keep_inputs,
    repeated_paths,
)
from tensorlens.planning.torch import step_watch
from tensorlens.records import ALLOC, FREE, Context, EventLog, Origin


def log_of(*changes):
    """Make a log: a size is an allocation, a negative number frees the block of that row."""
    log = EventLog()
    for row, change in enumerate(changes):
        if change > 0:
            log.append(ALLOC, "cpu", row + 1, change, row, -1, Context())
        else:
            log.append(FREE, "cpu", 1 - change, log.size[-change], row, -1, Context())
    return log


#                 0    1    2  3   4   5
CHANGES = log_of(100, 50, 30, -1, 40, -2)
"""Levels: 100, 150, 180, 130, 170, 140."""


@pytest.fixture
def replay():
    return Replay(CHANGES, 0)


def test_unchanged_replay_is_the_recording(replay):
    assert replay.peak() == 180


def test_removed_block(replay):
    replay.remove(0)
    assert replay.peak() == 80


def test_the_peak_moves(replay):
    replay.free(1, before=2)
    # 100, 150, then 130, 130, 170
    assert replay.peak() == 170


def test_block_freed_earlier(replay):
    replay.free(1, before=5)
    assert replay.peak() == 220


def test_block_freed_before_its_allocation(replay):
    replay.free(0, before=1)
    assert replay.peak() == 100


def test_inserted_bytes_count_at_their_peak(replay):
    replay.insert(4, [60, -60])
    assert replay.peak() == 190


def test_block_freed_and_recomputed(replay):
    # gone before 2, and there again from 4 on; it was freed at 3, which is of the second one
    replay.free_first_copy(1, before=2)
    replay.insert(3, [50])
    assert replay.peak() == 180


def test_added_block(replay):
    replay.add(7, after=1, before=3)
    assert replay.peak() == 187


def test_other_devices_do_not_count():
    log = log_of(10)
    log.append(ALLOC, "cuda:0", 99, 1000, 9, -1, Context())
    assert Replay(log, 0).peak() == 10
    assert Replay(log, 1).peak() == 1000


def test_an_input_of_two_calls_stays_until_backward_is_through_with_both():
    log = log_of(100, 50, -1, 40, -3, 20, -5, 10, -7)
    record = RecordedSteps(Recording(log))
    record.phase = lambda row: "forward"
    calls = [Call(0, range(1, 3), range(7, 9)), Call(1, range(3, 5), range(5, 7))]
    # both begin with row 0; backward comes to the second one first
    assert keep_inputs(record, record.replay(), calls) == {0: 9}


def test_repeated_paths_are_numbered_alike_and_outermost():
    paths = [
        *("net", "net.embedding", "net.layers"),
        *(f"net.layers.{n}" for n in range(2)),
        *(f"net.layers.{n}.{part}" for n in range(2) for part in ("norm", "heads", "heads.0")),
        *(f"net.layers.{n}.heads.0.{part}" for n in range(2) for part in ("a", "b")),
        *("net.tail.0", "net.tail.1", "net.tail.1.x"),
    ]
    assert repeated_paths(paths) == ["net.layers.0", "net.layers.1"]
    assert repeated_paths(["a.10.x", "a.9.x"]) == ["a.9", "a.10"]
    assert repeated_paths([]) == []


def test_variables_that_are_not_looked_at_again():
    def function(given):
        first, _second, third = 1, 2, 3
        seen = step_watch.unused(sys._getframe())
        fourth = third
        first = 5
        return seen, fourth, first

    # _second is never read again, first is stored anew, given was never read
    assert set(function(0)[0]) >= {"given", "first", "_second"}
    assert "third" not in function(0)[0]


def test_a_loop_goes_round_once_more():
    def function():
        carried, made, seen = 0, 0, ()
        for each in (1, 2):
            made = carried + each
            seen = step_watch.unused(sys._getframe())
            carried = each
        return seen, made

    # the next round reads what this one carries, and makes the other anew; it is returned though
    found = function()[0]
    assert "carried" in found and "made" not in found


def test_a_variable_that_one_branch_reads_and_another_stores():
    def function(flag):
        logits = 1
        seen = step_watch.unused(sys._getframe())
        if flag:
            logits = None
        else:
            print(logits)
        return seen

    assert "logits" not in function(True)


def test_a_variable_that_an_exception_handler_reads():
    def function():
        logits, seen = 1, ()
        try:
            seen = step_watch.unused(sys._getframe())
        except ValueError:
            print(logits)
        return seen

    assert "logits" not in function()


def test_a_variable_that_is_read_where_another_is_stored():
    def function():
        scale = 2
        seen = step_watch.unused(sys._getframe())
        # Python 3.13 has one instruction that stores x and loads scale
        return seen, [scale * x for x in (1, 2)]

    assert "scale" not in function()[0]


def test_closure_variables_are_left_out():
    def function():
        shared = 1

        def inner():
            return shared

        return step_watch.unused(sys._getframe()), inner

    assert "shared" not in function()[0]


def test_a_recording_in_which_nothing_can_be_found():
    origin = Origin(source={"cpu": "TensorFlow CPU allocator"})
    found = suggest(Recording(log_of(100), origin))
    assert (len(found), found.peak) == (0, 100)


def test_another_framework_is_refused():
    with pytest.raises(UsageError, match="framework='jax': there is torch, tensorflow"):
        suggest(lambda: None, framework="jax")


def test_code_names_the_blocks_of_a_list_and_no_others():
    def loop_of(*paths, length=None):
        blocks = [RepeatedBlock(path, "Block", length) for path in paths]
        return checkpoints._loop(blocks).splitlines()[2]

    assert loop_of("net.layers.0", "net.layers.1", length=2) == "for block in net.layers:"
    # a head lies behind them, or may
    assert loop_of("net.0", "net.1", length=3) == "for block in net[0:2]:"
    assert loop_of("net.0", "net.1") == "for block in net[0:2]:"
    assert loop_of("net.0", "net.2", length=3) == "for block in [net[0], net[2]]:"
    # before them an embedding lies in the same Sequential
    assert loop_of("net.1", "net.2", "net.3") == "for block in net[1:4]:"
    assert loop_of("net.a.0", "net.1.2", "net.1.3") == "for block in [*net.a[0:1], *net[1][2:4]]:"
