import csv
import io
from pathlib import Path

import pytest
import rendered_snapshots as snapshots

from tensorlens import load, render
from tensorlens.records import FIELDS
from tensorlens.render import View, csv_text, spreadsheet_text, to_pandas

RECORDS = {**{kind: made() for kind, made in snapshots.KINDS.items()}, **snapshots.changes()}


def read_back(record) -> list[dict[str, str]]:
    text = csv_text(record)
    return list(csv.DictReader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("kind", snapshots.KINDS)
def test_every_tensor_has_a_row_with_every_field(kind: str) -> None:
    snapshot = snapshots.KINDS[kind]()
    rows = read_back(snapshot)
    assert len(rows) == len(snapshot.tensors)
    for row, tensor in zip(rows, snapshot.tensors, strict=True):
        assert tuple(row) == FIELDS
        for field, text in row.items():
            value = getattr(tensor, field)
            if field == "names":
                value = " = ".join(value)
            assert text == ("" if value is None else spreadsheet_text(str(value)))


def test_csv_of_a_snapshot() -> None:
    row = read_back(snapshots.two_devices())[0]
    assert (row["shape"], row["born"], row["nbytes"]) == (
        "(512, 512)",
        "train.py:12 in step",
        "1048576",
    )
    assert read_back(snapshots.tied())[0]["names"] == "emb.weight = head.weight"


def test_csv_of_changes() -> None:
    rows = read_back(snapshots.grown())
    assert [(row["change"], row["name"], row["bytes_change"]) for row in rows] == [
        *(("appeared", f"history[{n}]", "1024") for n in range(10, 20)),
        ("gone", "lost", "-2048"),
        ("grown", "cache", "2048"),
        ("grown", "buffer", "-2048"),
    ]
    cache = rows[11]
    assert (cache["shape_before"], cache["shape_after"]) == ("(256,)", "(768,)")
    assert (cache["bytes_before"], cache["bytes_after"]) == ("1024", "3072")


@pytest.mark.parametrize("kind", RECORDS)
def test_pandas_has_the_rows_of_the_csv(kind: str) -> None:
    pytest.importorskip("pandas")
    frame = to_pandas(RECORDS[kind])
    rows = read_back(RECORDS[kind])
    values = frame.astype(object).where(frame.notna(), "").to_dict("records")
    shown = [{key: spreadsheet_text(str(value)) for key, value in row.items()} for row in values]
    assert shown == rows


def test_pandas_adds_up() -> None:
    pytest.importorskip("pandas")
    frame = snapshots.all_roles().to_pandas()
    # 1 to 7 times 4 KiB
    assert frame["storage_nbytes"].sum() == 28 * 4096
    assert str(frame["storage"].dtype) == "UInt64"
    assert snapshots.grown().to_pandas()["bytes_change"].sum() == 8192


@pytest.mark.parametrize("extension", ["csv", "html", "json", "txt"])
@pytest.mark.parametrize("kind", ["empty", "hostile", "merged", "grown"])
def test_every_record_can_be_saved(tmp_path: Path, kind: str, extension: str) -> None:
    record = RECORDS[kind]
    path = render.save(record, tmp_path / f"out.{extension}", view=View(top=1))
    assert path.read_bytes()
    if extension == "json":
        assert load(path) == record


def test_a_view_chooses_what_a_text_file_shows(tmp_path: Path) -> None:
    path = render.save(snapshots.many(), tmp_path / "out.txt", view=View(top=1))
    assert "99 more tensors" in path.read_text("utf-8")
