"""Which blocks a page carries, and where the lines of its picture are."""

import random
import re

import pytest
import rendered_recordings as recordings
from rendered_recordings import MS

from tensorlens import Recording
from tensorlens.recording import heat_files, page_data, picture
from tensorlens.records import ALLOC, FREE, START, EventLog, Frame, SourceLine
from tensorlens.render import pictures


def random_recording(seed: int, events: int = 400) -> Recording:
    chance, log, alive = random.Random(seed), EventLog(), []
    for number in range(chance.randrange(10)):
        log.append(START, "cpu", number + 1, chance.randrange(50), 0)
        alive.append(number + 1)
    for number in range(events):
        if alive and chance.random() < 0.45:
            log.append(FREE, "cpu", alive.pop(chance.randrange(len(alive))), 0, number)
        else:
            log.append(ALLOC, "cpu", 1000 + number, chance.randrange(50), number)
            alive.append(1000 + number)
    return Recording(log)


@pytest.mark.parametrize("seed", range(12))
def test_the_largest_blocks_and_those_of_the_peak_are_carried(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_data, "MAX_BLOCKS", 30)
    monkeypatch.setattr(page_data, "MAX_BLOCKS_OF_INSTANT", 20)
    recording = random_recording(seed)
    timeline, log = recording.timeline(points=60), recording.log
    made = log.allocations(log.devices.index("cpu"))
    chosen = page_data.chosen_blocks(log, "cpu", made, [timeline.rows[timeline.peak]])
    assert chosen == sorted(set(chosen)) and len(chosen) <= 50
    carried = sorted((log.size[row] for row in chosen), reverse=True)
    assert carried[:30] == sorted((log.size[row] for row in made), reverse=True)[:30]
    peak = recording.peak().tensors
    at_peak = sorted((block.nbytes for block in peak if block.row in chosen), reverse=True)
    assert at_peak[:20] == [block.nbytes for block in peak][:20]
    assert page_data.counts(log, timeline, made) == [
        len(recording.at(row).tensors) for row in timeline.rows
    ]


def corners(path: str) -> list[tuple[int, int]]:
    """The places a path goes through."""
    x = y = 0
    found = []
    for command, rest in re.findall(r"([MHVZ])([\d ]*)", path):
        if command == "M":
            x, y = map(int, rest.split())
        elif command == "H":
            x = int(rest)
        elif command == "V":
            y = int(rest)
        found.append((x, y))
    return found


def drawn(recording: Recording):
    timeline = recording.timeline()
    log = recording.log
    return picture(recording, timeline, log.allocations(log.devices.index(timeline.device)))


def test_the_steps_of_a_training_step() -> None:
    found = drawn(recordings.training())
    # 7 ms and 1/99 of it more are the whole width, 300 KiB the whole height
    span = 7_000_000 + 70_708
    places = [ms * 1_000_000 * pictures.WIDTH // span for ms in (0, 1, 2, 3, 4, 5, 6, 7)]
    assert list(found.xs) == places
    levels = [
        pictures.HEIGHT - kib * pictures.HEIGHT // 300
        for kib in (120, 160, 168, 268, 228, 220, 250, 220)
    ]
    path = corners(found.areas[0].path)
    expected = [(0, pictures.HEIGHT), (0, levels[0])]
    for before, x, level in zip(levels, places[1:], levels[1:], strict=False):
        expected += [(x, before), (x, level)]
    expected += [
        (pictures.WIDTH, levels[-1]),
        (pictures.WIDTH, pictures.HEIGHT),
        (pictures.WIDTH, pictures.HEIGHT),
    ]
    assert path == expected
    assert [area.role for area in found.areas] == [
        *("temporary", "input", "activation", "gradient", "parameter"),
    ]
    assert corners(found.areas[-1].path)[1] == (0, pictures.HEIGHT - 100 * pictures.HEIGHT // 300)
    assert [label.text for label in found.grid] == ["0 B", "100 KiB", "200 KiB", "300 KiB"]
    assert [label.text for label in found.ticks] == ["0 ns", "2 ms", "4 ms", "6 ms"]
    assert [label.text for label in found.mark_labels] == ["forward", "backward", "end"][:2]
    assert found.marks == (places[1], places[3])
    assert [(band.phase, band.x) for band in found.bands] == [
        ("other", 0),
        ("forward", places[1]),
        ("backward", places[3]),
        ("optimizer", places[6]),
    ]


@pytest.mark.parametrize("kind", [kind for kind in recordings.KINDS if kind != "empty"])
def test_a_picture_stays_inside_its_frame(kind: str) -> None:
    recording = recordings.KINDS[kind]()
    for device in recording.devices:
        timeline = recording.timeline(device)
        log = recording.log
        found = picture(recording, timeline, log.allocations(log.devices.index(device)))
        for area in found.areas:
            for x, y in corners(area.path):
                assert 0 <= x <= pictures.WIDTH and 0 <= y <= pictures.HEIGHT
        assert list(found.xs) == sorted(found.xs)
        assert 2 <= len(found.grid) <= 6


def test_dropped_events_are_not_drawn() -> None:
    found = drawn(recordings.dropped())
    # 2 ms from the first kept event to the last and 1/99 more; 512 B are the whole height
    assert found.xs == (0, 0, 2 * MS * pictures.WIDTH // (2 * MS + 20_203))
    assert [label.text for label in found.ticks][:2] == ["7 ms", "7.50 ms"]
    assert [label.text for label in found.grid] == ["0 B", "128 B", "256 B", "384 B", "512 B"]
    assert found.dropped == "1,234 earlier events"
    assert found.dropped_peak == pictures.Label("510 B", "99.61%")
    assert (found.peak_x, found.peak_y) == ("0.00%", "6.84%")
    whole = drawn(recordings.training())
    assert (whole.dropped, whole.dropped_peak) == ("", None)


def test_events_without_times_are_drawn_by_number() -> None:
    log = EventLog()
    for number in range(5):
        log.append(ALLOC, "cpu", number + 1, 100, 0)
    found = drawn(Recording(log))
    assert not found.by_time
    assert len(set(found.xs)) == len(found.xs)
    assert found.ticks[1].text.startswith("event ")


def test_source_is_folded_around_the_lines_that_have_bytes() -> None:
    log = EventLog()
    log.stacks.add([Frame("a.py", 20, "f")])
    log.sources["a.py"] = [f"line {number}" for number in range(1, 41)]
    log.sources["b.py"] = ["nothing"]
    line = SourceLine("a.py", 20, "f")
    (file,) = heat_files(log, {line: 7, None: 5}, {SourceLine("a.py", 99, "g"): 3})
    assert (file.title, file.asides) == ("a.py", ("7 B resident, 3 B in backward",))
    (table,) = file.blocks
    rows = [
        [cell if isinstance(cell, str) else cell.text for cell in row.cells] for row in table.rows
    ]
    assert rows[0] == ["", "", "", "… 15 lines"]
    assert [row[0] for row in rows[1:10]] == [str(number) for number in range(16, 25)]
    assert rows[5] == ["20", "7 B", "", "line 20"]
    assert rows[10] == ["", "", "", "… 16 lines"]
    assert rows[11:] == [["99", "", "3 B", ""]]
