"""Recordings as CSV, pandas and JSON."""

import csv
import io
import json

import pytest
import rendered_recordings as recordings
from rendered_recordings import KIB, MS

from tensorlens.recording import data as recording_data
from tensorlens.render import csv_text, file_content, spreadsheet_text, to_pandas


def read_back(recording) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(csv_text(recording), newline="")))


@pytest.mark.parametrize("kind", recordings.KINDS)
def test_every_event_has_a_row(kind: str) -> None:
    recording = recordings.KINDS[kind]()
    rows = read_back(recording)
    assert len(rows) == len(recording.events)
    for row, event in zip(rows, recording.events, strict=True):
        assert tuple(row) == recording_data.COLUMNS
        assert (row["action"], row["device"]) == (event.action, spreadsheet_text(event.device))
        assert int(row["row"]) == event.row
        assert int(row["nbytes"]) == event.nbytes
        assert int(row["address"]) == event.address
        assert int(row["time_ns"]) == event.time_ns
        assert row["pair"] == ("" if event.pair < 0 else str(event.pair))
        user = next((frame for frame in event.stack if frame.user), None)
        assert row["lineno"] == ("" if user is None else str(user.lineno))


def test_rows_of_a_training_step() -> None:
    rows = read_back(recordings.training())
    made = rows[2]
    assert {name: made[name] for name in ("name", "role", "phase", "module", "op", "outer")} == {
        "name": "fc1: aten::addmm",
        "role": "activation",
        "phase": "forward",
        "module": "fc1",
        "op": "aten::addmm",
        "outer": "",
    }
    assert (rows[4]["node"], rows[4]["shape"]) == ("AddmmBackward0", "(160, 160)")
    assert (rows[4]["op"], rows[4]["outer"]) == ("aten::mm", "aten::matmul")
    freed = rows[5]
    assert (freed["action"], freed["pair"], freed["name"], freed["role"]) == ("free", "2", "", "")


def test_text_is_printable() -> None:
    shown = "</script><script>alert(1)</script><!-- \"' &    {{ 'ab'*9 }} <b>bold</b>"
    assert read_back(recordings.hostile())[0]["name"] == shown


def test_reserved_bytes_in_rows() -> None:
    rows = read_back(recordings.two_devices())
    assert [row["held"] for row in rows] == ["", "", str(3 * KIB * KIB // 2), ""]
    assert [row["action"] for row in rows] == ["alloc", "segment_alloc", "alloc", "oom"]


@pytest.mark.parametrize("kind", recordings.KINDS)
def test_pandas_has_the_rows_of_the_csv(kind: str) -> None:
    pandas = pytest.importorskip("pandas")
    recording = recordings.KINDS[kind]()
    frame = to_pandas(recording)
    assert tuple(frame.columns) == recording_data.COLUMNS
    assert frame["nbytes"].tolist() == list(recording.log.size)
    assert str(frame["address"].dtype) == "UInt64"
    assert str(frame["nbytes"].dtype) == "Int64"
    assert pandas.api.types.is_string_dtype(frame["name"])
    assert recording.to_pandas().equals(frame)


@pytest.mark.parametrize("kind", recordings.KINDS)
def test_the_summary_is_plain_and_adds_up(kind: str) -> None:
    recording = recordings.KINDS[kind]()
    data = json.loads(file_content(recording, "json"))
    assert data.pop("log")
    assert (data.pop("schema"), data.pop("version")) == ("tensorlens.recording_summary", 1)
    assert data.pop("contains_source") == recording.contains_source
    assert data == json.loads(json.dumps(recording_data.summary(recording)))
    assert list(data["devices"]) == list(recording.devices)
    for found in data["devices"].values():
        peak = found["peak"]
        for name in ("by_line", "by_module"):
            assert sum(each["nbytes"] for each in peak[name]) == peak["bytes"]
        for name in ("by_role", "by_phase"):
            assert sum(peak[name].values()) == peak["bytes"]
        listed = sum(each["nbytes"] for each in peak["tensors"])
        assert listed + peak["rest"]["nbytes"] == peak["bytes"]
        timeline = found["timeline"]
        columns = zip(*timeline["by_role"].values(), strict=True)
        assert not timeline["by_role"] or list(map(sum, columns)) == timeline["totals"]


def test_the_summary_of_a_training_step() -> None:
    data = recording_data.summary(recordings.training())
    (found,) = data["devices"].values()
    line = {"filename": "train.py", "lineno": 2, "function": "step"}
    peak = found["peak"]
    assert (peak["bytes"], peak["row"], peak["time_ns"]) == (268 * KIB, 4, 3 * MS)
    assert (peak["held"], peak["reserved"]) == (None, None)
    assert peak["by_line"][0] == {"line": line, "nbytes": 140 * KIB}
    assert peak["tensors"][0]["name"] == "fc1.weight"
    assert peak["tensors"][0]["shape"] == [160, 160]
    assert found["backward"] == [
        {
            "line": line,
            "nbytes": 100 * KIB,
            "blocks": 1,
            "kept": 100 * KIB,
            "peak": 100 * KIB,
            "gradients": {"fc1.weight.grad": 100 * KIB},
            "nodes": {"AddmmBackward0": 100 * KIB},
            "model_lines": [],
        }
    ]
    assert (found["churn"]["handed_out"], found["churn"]["allocations"]) == (178 * KIB, 4)
    assert [mark["row"] for mark in data["marks"]] == [2, 4, 9]
    assert data["growth"][0]["line"] == line


def test_the_summary_lists_the_largest_blocks_alone() -> None:
    recording = recordings.steps(recording_data.TENSORS + 500)
    (found,) = recording_data.summary(recording)["devices"].values()
    # as many of 256 B as steps, and one of 4 KiB
    assert len(found["peak"]["tensors"]) == recording_data.TENSORS
    assert found["peak"]["rest"] == {"count": 501, "nbytes": 501 * 256}


def test_the_segments_are_in_the_summary() -> None:
    found = recording_data.summary(recordings.two_devices())["devices"]["cuda:0"]
    assert found["fragmentation"]["reserved"] == 20 * KIB * KIB
    assert found["peak"]["held"] == 3 * KIB * KIB // 2
