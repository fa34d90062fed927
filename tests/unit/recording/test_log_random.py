"""Random logs: every answer against one found by playing the events one by one."""

from random import Random

import pytest
from made_logs import (
    ENGINE,
    OPTIMIZER,
    Made,
    slowly_level,
    slowly_peak,
    slowly_resident,
    sums,
    user,
)

from tensorlens import Recording
from tensorlens.records import ALLOC, Context

DEVICES = ("cpu", "cuda:0")


def random_log(seed: int, events: int = 300) -> Made:
    random, made = Random(seed), Made()
    stacks = [
        -1,
        made.stack(user(1)),
        made.stack(user(1), "fc", user(2)),
        made.stack(user(1), "fc", user(3)),
        made.stack(user(4), ENGINE),
        made.stack(user(4), ENGINE, "fc", user(2)),
        made.stack(user(5), OPTIMIZER),
    ]
    contexts = [
        None,
        Context(),
        Context(op="aten::mm", grad=True),
        Context(op="aten::mm", node="AddmmBackward0", forward=stacks[2]),
        Context(thread=1, node="ReluBackward0", forward=stacks[3]),
        Context(thread=1, op="aten::relu"),
    ]
    for _ in range(random.randrange(5)):
        made.start(random.randrange(100))
    there = list(range(len(made.log)))
    for _ in range(events):
        where = random.choice(stacks), random.choice(contexts)
        if there and random.random() < 0.45:
            made.free(there.pop(random.randrange(len(there))), *where)
        else:
            size = random.choice((0, 1, 8, 64, random.randrange(1000)))
            there.append(made.alloc(size, *where, device=random.choice(DEVICES)))
    return made


@pytest.fixture(params=range(12))
def made(request: pytest.FixtureRequest) -> Made:
    return random_log(request.param)


def test_levels_and_peaks(made: Made) -> None:
    recording = made.recording
    for device in recording.devices:
        peak = recording.peak(device)
        assert (peak.bytes, peak.row) == slowly_peak(made.log, device)
        for row in range(-1, len(made.log), 17):
            moment = recording.at(row, device)
            assert sorted(block.row for block in moment.tensors) == slowly_resident(
                made.log, device, row
            )
            assert moment.bytes == slowly_level(made.log, device, row)


def test_sums_of_every_kind(made: Made) -> None:
    recording = made.recording
    for moment in (recording.peak(), recording.at(len(made.log) // 2)):
        blocks = list(moment.tensors)
        assert moment.by_line == sums([(block.charged, block.nbytes) for block in blocks])
        assert moment.by_role == sums([(block.role, block.nbytes) for block in blocks])
        assert moment.by_module == sums([(block.module, block.nbytes) for block in blocks])
        assert moment.by_stack == sums([(block.stack, block.nbytes) for block in blocks])
        assert moment.by_phase == sums([(block.phase, block.nbytes) for block in blocks])
        assert [block.nbytes for block in blocks] == sorted(
            (block.nbytes for block in blocks), reverse=True
        )
        assert all(block.name for block in blocks)


def test_random_timelines(made: Made) -> None:
    recording = made.recording
    for points in (2, 20, 2000):
        timeline = recording.timeline("cpu", points)
        for point, row in enumerate(timeline.rows):
            moment = recording.at(row, "cpu")
            roles = {role: values[point] for role, values in timeline.by_role.items()}
            assert timeline.totals[point] == moment.bytes == sum(roles.values())
            assert {role: nbytes for role, nbytes in roles.items() if nbytes} == {
                role: nbytes for role, nbytes in moment.by_role.items() if nbytes
            }
        assert timeline.totals[timeline.peak] == recording.peak("cpu").bytes


def test_all_of_backward(made: Made) -> None:
    recording, log = made.recording, made.log
    handed_out = [row for row in range(len(log)) if log.kind[row] == ALLOC]
    for device in (None, *recording.devices):
        blocks = [
            block
            for block in recording.blocks(handed_out)
            if block.phase == "backward" and device in (None, block.device)
        ]
        costs = recording.backward(device)
        assert {cost.line: cost.nbytes for cost in costs} == sums(
            [(block.charged, block.nbytes) for block in blocks]
        )
        for cost in costs:
            assert sum(cost.nodes.values()) == cost.nbytes >= cost.peak
            assert cost.nbytes >= cost.kept
            own = [block.row for block in blocks if block.charged == cost.line]
            assert cost.peak == max(_own_level(recording, own, row) for row in own)


def test_growth_adds_up(made: Made) -> None:
    recording, log = made.recording, made.log
    for first, last in ((-1, len(log) - 1), (40, 200), (200, 40)):
        change = sum(
            slowly_level(log, device, last) - slowly_level(log, device, first)
            for device in recording.devices
        )
        assert sum(each.nbytes for each in recording.growth(first, last)) == change


def test_churn_adds_up(made: Made) -> None:
    recording, log = made.recording, made.log
    for number, device in enumerate(recording.devices):
        rows = [
            row for row in range(len(log)) if log.kind[row] == ALLOC and log.device[row] == number
        ]
        churn = recording.churn(device)
        assert churn.handed_out == sum(log.size[row] for row in rows)
        assert churn.allocations == len(rows)
        assert sum(churn.by_line.values()) == churn.handed_out


def _own_level(recording: Recording, own: list[int], row: int) -> int:
    log = recording.log
    return sum(log.size[each] for each in own if each <= row and not 0 <= log.pair[each] <= row)
