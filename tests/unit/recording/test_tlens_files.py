"""`.tlens` files: equal when read back, and never anything but one clear line for a bad one."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from made_logs import ENGINE, Made, user

from tensorlens.errors import FileFormatError, TensorlensError, UsageError
from tensorlens.lines.report import LineReport
from tensorlens.loading import load
from tensorlens.recording.recordings import Recording
from tensorlens.recording.tlens import tables
from tensorlens.records.events import (
    OOM,
    SEGMENT_ALLOC,
    START,
    Context,
    EventLog,
    Label,
    Mark,
    Segment,
    SegmentBlock,
)
from tensorlens.records.origin import Origin
from tensorlens.render import save

Lines = list[dict[str, Any]]


def everything() -> Recording:
    """Return a recording that uses each field of each record."""
    made = Made("cuda:0")
    log = made.log
    made.start(100)
    stack = made.stack(user(1), "net", user(2, "f\u2028</script>", "/me/\udcff.py"))
    row = made.alloc(30, stack, Context(op="aten::mm", outer="aten::linear", grad=True))
    log.name(row, Label("fc.weight", "parameter", "float32", (5, 2)))
    node = Context(2, "aten::mm", "AddmmBackward0", stack, None, False, "backward", "net.fc")
    other = made.alloc(2**40, made.stack(user(4), ENGINE), node, device="cpu")
    made.free(row)
    made.free(other, -1, Context())
    log.append(2, "cuda:0", 2**64 - 1, 5, 99)
    log.append(SEGMENT_ALLOC, "cuda:0", 4096, 2 << 20, 100)
    log.append(OOM, "cuda:0", 0, 1 << 40, 90)
    log.held[1] = 512
    log.marks.append(Mark("after", 3, 17))
    log.dropped_marks.append("before")
    log.segments_known = True
    block = SegmentBlock(4096, 512, 30, "active_allocated", stack)
    log.segments.append(Segment("cuda:0", 4096, 2 << 20, 3, "small", True, "(0, 1)", (block,), 0))
    log.segments.append(Segment("cuda:0", 0, 0))
    log.sources["/me/train.py"] = ["import torch", "", "\u2028'\"<b>"]
    dropped = EventLog()
    dropped.append(START, "cuda:0", 1, 900, 5, stack=dropped.stacks.add([user(9)]))
    origin = Origin(
        "measured", "rank 0", {"cpu": "torch"}, 1.5, {"cpu": 7}, 12, {"cuda:0": dropped}, ("so",)
    )
    return Recording(log, origin)


def assert_equal(one: EventLog, other: EventLog) -> None:
    for column in EventLog.COLUMNS:
        assert getattr(one, column) == getattr(other, column), column
    for each in ("devices", "stacks", "contexts", "labels", "held", "segments"):
        assert getattr(one, each) == getattr(other, each), each
    assert (one.marks, one.dropped_marks) == (other.marks, other.dropped_marks)
    assert (one.segments_known, one.sources) == (other.segments_known, other.sources)


def content(recording: Recording, folder: Path) -> Lines:
    file = recording.save(folder / "content.tlens", overwrite=True)
    return [json.loads(line) for line in file.read_text("ascii").splitlines()]


def written(lines: Lines, file: Path) -> Path:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


@pytest.mark.parametrize("name", ["run.tlens", "run.tlens.gz", "my.run.TLENS"])
def test_reads_back_equal(tmp_path: Path, name: str) -> None:
    recording = everything()
    loaded = load(recording.save(tmp_path / name))
    assert isinstance(loaded, Recording)
    assert_equal(loaded.log, recording.log)
    (device,) = recording.origin.dropped_peaks
    before, after = recording.origin.dropped_peaks[device], loaded.origin.dropped_peaks[device]
    assert [event.stack for event in before] == [event.stack for event in after]
    assert (after.size, after.time) == (before.size, before.time)
    for field in ("provenance", "process", "source", "started", "counted", "dropped", "notes"):
        assert getattr(loaded.origin, field) == getattr(recording.origin, field)
    assert loaded.peak("cuda:0") == recording.peak("cuda:0")
    assert loaded.peak("cuda:0").bytes == 900
    again = loaded.save(tmp_path / f"again-{name}")
    assert again.read_bytes() == (tmp_path / name).read_bytes()


def test_nothing_recorded_reads_back(tmp_path: Path) -> None:
    loaded = load(Recording(EventLog()).save(tmp_path / "empty.tlens"))
    assert isinstance(loaded, Recording)
    assert_equal(loaded.log, EventLog())


def test_many_rows_are_many_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorlens.recording.tlens.writer.ROWS", 7)
    random, made = Random(5), Made()
    rows = [made.start(random.randrange(9)) for _ in range(10)]
    for _ in range(100):
        if rows and random.random() < 0.5:
            made.free(rows.pop(random.randrange(len(rows))))
        else:
            rows.append(made.alloc(random.randrange(1000)))
    lines = content(made.recording, tmp_path)
    assert [line["events"]["rows"] for line in lines if "events" in line] == [7] * 15 + [5]
    loaded = load(tmp_path / "content.tlens")
    assert isinstance(loaded, Recording)
    assert_equal(loaded.log, made.log)


def test_the_format(tmp_path: Path) -> None:
    made = Made()
    row = made.alloc(8, made.stack(user(3)), Context(op="aten::mm"))
    made.alloc(8)
    made.free(row)
    header, *tables, end = content(made.recording, tmp_path)
    assert header["schema"] == "tensorlens.recording"
    assert (header["version"], header["devices"]) == (1, ["cpu"])
    assert tables == [
        {"frames": [["/me/train.py", 3, "step", 1]]},
        {"stacks": {"parent": [-1], "frame": [0], "module": [-1]}},
        {"contexts": [{"op": "aten::mm"}]},
        {
            "events": {
                "rows": 3,
                "kind": [1, 1, 2],
                "device": 0,
                "address": [1, 2, 1],
                "size": 8,
                "stack": [0, -1, -1],
                "context": [0, -1, -1],
                "label": -1,
                "time": [0, 1, 1],
                "back": [2],
            }
        },
    ]
    assert end == {"end": {"events": 3}}


def test_what_a_newer_version_adds_is_passed_over(tmp_path: Path) -> None:
    lines = content(everything(), tmp_path)
    lines[0]["later"] = 1
    for line in lines:
        for each in line.get("contexts", []) + line.get("labels", []) + line.get("segments", []):
            each["later"] = {}
    lines.insert(3, {"later": [[[]]]})
    loaded = load(written(lines, tmp_path / "later.tlens"))
    assert isinstance(loaded, Recording)
    assert_equal(loaded.log, load(tmp_path / "content.tlens").log)


def refused(file: Path) -> str:
    with pytest.raises(FileFormatError) as caught:
        load(file)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"{file}: ")
    return text.removeprefix(f"{file}: ")


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    lines = content(everything(), tmp_path)
    lines[0]["version"] = 2
    file = written(lines, tmp_path / "new.tlens")
    assert refused(file) == "recording of version 2; this tensorlens reads 1"


@pytest.mark.parametrize("name", ["run.tlens", "run.tlens.gz"])
def test_every_cut_is_told(tmp_path: Path, name: str) -> None:
    whole = everything().save(tmp_path / name).read_bytes()
    file = tmp_path / f"cut-{name}"
    for length in range(64, len(whole) - 1, 7):
        file.write_bytes(whole[:length])
        assert refused(file) in (
            "damaged recording: the file is cut short",
            "not a tensorlens recording",
        )


def test_gzip_of_something_else(tmp_path: Path) -> None:
    file = tmp_path / "run.tlens.gz"
    file.write_bytes(gzip.compress(b"hello"))
    assert refused(file) == "not a tensorlens recording"
    file.write_bytes(b"\x1f\x8b" + bytes(50))
    assert refused(file) == "damaged recording: its compression is damaged"
    good = bytearray(everything().save(tmp_path / "good.tlens.gz").read_bytes())
    good[-6] ^= 1
    file.write_bytes(good)
    assert refused(file) == "damaged recording: its compression is damaged"


def test_a_bomb_is_left_alone(tmp_path: Path) -> None:
    first = json.dumps(content(everything(), tmp_path)[0]).encode() + b"\n"
    kept = {"rows": 50_000, "address": [0] * 50_000, "kind": 0, "back": [], "time": 0, "size": 0}
    line = json.dumps({"events": {**kept, **dict.fromkeys(("stack", "context", "label"), -1)}})
    line = line.replace('"kind"', '"device": 0, "kind"') + "\n"
    file = tmp_path / "bomb.tlens.gz"
    file.write_bytes(gzip.compress(first + line.encode() * 500))
    assert file.stat().st_size < 200_000
    assert refused(file) == "damaged recording: it unpacks to far more than it holds"


def test_lines_without_an_end(tmp_path: Path) -> None:
    first = json.dumps(content(everything(), tmp_path)[0]).encode() + b"\n"
    file = tmp_path / "lines.tlens.gz"
    file.write_bytes(gzip.compress(first + b"{}\n" * 600_000))
    assert refused(file) == "damaged recording: more than 524288 lines"


def test_a_line_without_an_end(tmp_path: Path) -> None:
    first = json.dumps(content(everything(), tmp_path)[0]) + "\n"
    file = tmp_path / "line.tlens"
    file.write_text(first + "[" * 40_000_000)
    assert refused(file) == "damaged recording: line 2 is longer than 33554432 bytes"
    file.write_text(first + "[" * 1_000_000 + "\n")
    assert refused(file) == "damaged recording: line 2 is not JSON"


def set_column(column: str, value: Any) -> Callable[[Lines], None]:
    def change(lines: Lines) -> None:
        (events,) = (line["events"] for line in lines if "events" in line)
        events[column] = value

    return change


def set_in(key: str, *path: Any) -> Callable[[Lines], None]:
    *way, last, value = path

    def change(lines: Lines) -> None:
        (place,) = (line[key] for line in lines if key in line)
        for step in way:
            place = place[step]
        place[last] = value

    return change


ROWS = 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_column("kind", [0, 1, 1, 2, 2, 2, 3, 9]), "kind is out of range"),
        (set_column("kind", "alloc"), "str in place of a whole number"),
        (set_column("kind", [1.5] * ROWS), "integer"),
        (set_column("kind", [1] * 7), "a column of 7 in place of 8 rows"),
        (set_column("kind", 300), ""),
        (set_column("device", 2), "device is out of range"),
        (set_column("device", -1), "device is out of range"),
        (set_column("size", -1), "size is out of range"),
        (set_column("size", 2**62), "more bytes than 64 bits can count"),
        (set_column("size", 10**30), "a number out of range"),
        (set_column("address", 7), "addresses that are no list"),
        (set_column("address", [-1] * ROWS), ""),
        (set_column("stack", 99), "stack is out of range"),
        (set_column("stack", -2), "stack is out of range"),
        (set_column("context", 99), "context is out of range"),
        (set_column("label", 99), "label is out of range"),
        (set_column("time", 2**62), ""),
        (set_column("back", [9, 0, 0]), "a free of an allocation before the first row"),
        (set_column("back", [-1, 0, 0]), "a free before its allocation"),
        (set_column("back", [2, 0, 4]), "an allocation that is freed twice"),
        (set_column("back", [0, 1, 0]), "a free of what is no allocation"),
        (set_column("back", [3, 0, 0]), None),
        (set_column("back", [1, 0, 0]), "a free on another device than its allocation"),
        (set_column("back", [2, 0]), "a column of 2 in place of 3 rows"),
        (set_column("rows", -1), "-1 rows in a line"),
        (set_column("rows", 10**9), "1000000000 rows in a line"),
        (set_column("rows", True), "bool in place of a whole number"),
        (set_in("stacks", "parent", 0, 0), "a stack that goes on from itself"),
        (set_in("stacks", "parent", 1, 2), "a stack that goes on from itself"),
        (set_in("stacks", "parent", 0, -2), "a stack's parent is out of range"),
        (set_in("stacks", "frame", 0, 99), "a stack's frame is out of range"),
        (set_in("stacks", "module", 0, 99), "a stack's module is out of range"),
        (set_in("stacks", "module", []), "stacks in columns of different length"),
        (set_in("frames", 0, ["file", "1", "f", 1]), "str in place of a whole number"),
        (set_in("frames", 0, []), ""),
        (set_in("frames", 0, None), "NoneType in place of a list"),
        (
            set_in("contexts", 0, "phase", "lunch"),
            "'lunch' is none of forward, backward, optimizer, other",
        ),
        (set_in("contexts", 0, "forward", 99), "a stack is out of range"),
        (set_in("contexts", 0, "grad", "yes"), "str in place of true or false"),
        (set_in("contexts", 0, None), "NoneType in place of a dict"),
        (set_in("labels", 0, "role", "king"), "'king' is no role"),
        (set_in("labels", 0, "shape", [None]), "NoneType in place of a whole number"),
        (set_in("marks", 0, 1, 99), "a mark is out of range"),
        (set_in("marks", 0, ["name"]), ""),
        (set_in("segments", 0, "size", -5), "a size is out of range"),
        (set_in("segments", 0, "blocks", 0, "stack", 99), "a stack is out of range"),
        (set_in("held", "rows", [99]), "a remainder's row is out of range"),
        (set_in("held", "rows", []), ""),
        (set_in("dropped_peak", "kind", 1), "events in the peak of what was dropped"),
        (set_in("dropped_peak", "stack", 99), "stack is out of range"),
        (set_in("end", "events", 7), "8 events in place of 7"),
        (set_in("sources", "/me/train.py", "text"), "str in place of a list"),
        (set_in("devices", 1, "cuda:0"), "a device twice"),
        (set_in("source", "cpu", 5), "int in place of a text"),
    ],
)
def test_damage_is_told(
    tmp_path: Path, change: Callable[[Lines], None], message: str | None
) -> None:
    lines = content(everything(), tmp_path)
    change(lines)
    file = written(lines, tmp_path / "damaged.tlens")
    if message is None:
        load(file)
    else:
        text = refused(file)
        assert text.startswith("damaged recording: ")
        assert message in text


def test_header_fields_are_needed(tmp_path: Path) -> None:
    lines = content(everything(), tmp_path)
    del lines[0]["devices"]
    text = refused(written(lines, tmp_path / "short.tlens"))
    assert text == "damaged recording: no 'devices'"


def test_lines_that_are_no_objects(tmp_path: Path) -> None:
    lines = content(everything(), tmp_path)
    lines.insert(1, [1])  # type: ignore[arg-type]
    text = refused(written(lines, tmp_path / "list.tlens"))
    assert text == "damaged recording: line 2 is no object"


def test_other_numbers_in_place_of_any(tmp_path: Path) -> None:
    """Whatever is changed: refused in one line, or a recording that answers."""
    original = content(everything(), tmp_path)
    random = Random(11)
    for _ in range(300):
        lines = json.loads(json.dumps(original))
        for _ in range(random.randrange(1, 3)):
            spoil(lines, random)
        file = written(lines, tmp_path / "spoilt.tlens")
        try:
            loaded = load(file)
        except TensorlensError as error:
            assert "\n" not in str(error)
            continue
        assert isinstance(loaded, Recording)
        ask_everything(loaded)


def spoil(place: Any, random: Random) -> None:
    """Replace one value somewhere in lists and dicts."""
    values = (-1, 0, 1, 3, 2**31, 2**63, 2**64, 10**40, -(2**63), 1.5, True, None, "x", [], {})
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = random.choice(keys)
        if not isinstance(place[key], list | dict) or random.random() < 0.1:
            place[key] = random.choice(values)
            return
        place = place[key]


def ask_everything(recording: Recording) -> None:
    for device in recording.devices:
        for block in recording.peak(device).tensors:
            assert block.name
        recording.timeline(device)
        recording.churn(device)
        recording.fragmentation(device)
        recording.backward(device)
    recording.growth()
    list(recording.events)


def test_only_recordings_are_kept_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is for recordings"):
        save(LineReport((), ()), tmp_path / "lines.tlens")


def test_no_file_is_replaced_unasked(tmp_path: Path) -> None:
    recording = everything()
    recording.save(tmp_path / "run.tlens")
    with pytest.raises(UsageError, match="exists"):
        recording.save(tmp_path / "run.tlens")
    recording.save(tmp_path / "run.tlens", overwrite=True)


def test_columns_of_whole_lines() -> None:
    log = everything().log
    data = tables.rows_to_dict(log, 0, len(log))
    assert data["rows"] == ROWS
    assert data["back"] == [2, 2, 0]
