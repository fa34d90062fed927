"""`.tlens` files: equal when read back, and never anything but one clear line for a bad one."""

import gzip
import json
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import pytest
from made_logs import ENGINE, Made, user

from tensorlens import LineReport, Recording, load
from tensorlens.errors import FileFormatError, UsageError
from tensorlens.recording import tlens as tables
from tensorlens.records import (
    OOM,
    SEGMENT_ALLOC,
    START,
    Context,
    EventLog,
    Label,
    Mark,
    Origin,
    Segment,
    SegmentBlock,
)
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
    origin = Origin("measured", "rank 0", {"cpu": "torch"}, 1.5, 12, {"cuda:0": dropped}, ("so",))
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
    for field in ("provenance", "process", "source", "started", "dropped", "notes"):
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
    monkeypatch.setattr("tensorlens.recording.tlens.ROWS", 7)
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


def test_tlens_format(tmp_path: Path) -> None:
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
        {"contexts": [asdict(Context(op="aten::mm"))]},
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
    assert end["end"]["events"] == 3


def test_unknown_fields_are_ignored(tmp_path: Path) -> None:
    lines = content(everything(), tmp_path)
    lines[0]["later"] = 1
    for line in lines:
        for each in line.get("contexts", []) + line.get("labels", []) + line.get("segments", []):
            each["later"] = {}
    lines.insert(3, {"later": [[[]]]})
    del lines[-1]["end"]["crc32"]
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
def test_truncated_files_are_refused(tmp_path: Path, name: str) -> None:
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


def test_line_without_json_is_refused(tmp_path: Path) -> None:
    first = json.dumps(content(everything(), tmp_path)[0]) + "\n"
    file = tmp_path / "line.tlens"
    file.write_text(first + "[" * 1_000_000 + "\n")
    assert refused(file) == "damaged recording: line 2 is not JSON"


CHANGED = "damaged recording: it was changed after it was written"


@pytest.mark.parametrize("old", [b'"time":[', b'"provenance":"', b'"rows":'])
def test_changed_files_are_refused(tmp_path: Path, old: bytes) -> None:
    file = everything().save(tmp_path / "run.tlens")
    whole = file.read_bytes()
    assert whole.count(old)
    at = whole.index(old) + len(old)
    digit = b"7" if whole[at : at + 1] != b"7" else b"6"
    for changed in (whole[:at] + digit + whole[at + 1 :], whole.replace(b"/me/", b"/you/")):
        file.write_bytes(changed)
        assert refused(file).startswith("damaged recording: ")


def test_a_file_of_before_there_was_a_checksum(tmp_path: Path) -> None:
    lines = content(everything(), tmp_path)
    del lines[-1]["end"]["crc32"]
    loaded = load(written(lines, tmp_path / "old.tlens"))
    assert isinstance(loaded, Recording)
    lines[-1]["end"]["events"] = 7
    assert refused(written(lines, tmp_path / "old.tlens")) == CHANGED


def test_header_fields_are_needed(tmp_path: Path) -> None:
    lines = content(everything(), tmp_path)
    del lines[0]["devices"]
    text = refused(written(lines, tmp_path / "short.tlens"))
    assert text == "damaged recording: no 'devices'"


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
    assert data["rows"] == len(log)
    assert data["back"] == [2, 2, 0]
