import pytest
import rendered_snapshots as snapshots
from test_html_renderer import Reader

from tensorlens.render import View, fragment, html_page, markup
from tensorlens.tensors import present

RECORDS = {**{kind: made() for kind, made in snapshots.KINDS.items()}, **snapshots.changes()}


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("view", [View(), View(top=2, verbose=True, explain=True)])
def test_a_fragment_is_whole_and_offline(kind: str, view: View) -> None:
    record = RECORDS[kind]
    reader = Reader(markup(record.presenter().blocks(record, view), "cell"))
    assert not reader.tags & {"script", "link", "img", "iframe", "b"}
    assert not [name for name, _ in reader.attributes if name.startswith("on")]
    assert not [name for name, _ in reader.attributes if name in ("src", "href")]
    for row in reader.rows:
        assert len(row) >= 3
    assert not reader.unscoped()


@pytest.mark.parametrize("kind", RECORDS)
def test_a_page_is_whole(kind: str) -> None:
    text = html_page(RECORDS[kind])
    reader = Reader(text)
    assert not reader.tags & {"link", "img", "iframe", "b"}
    assert text.count("<script") in (0, 1)
    assert not [name for name, _ in reader.attributes if name in ("src", "href")]
    text.encode("utf-8", "backslashreplace")


def test_snapshot_cells() -> None:
    rows = Reader(fragment(snapshots.views())).rows
    rows = [[" ".join(cell.split()) for cell in row] for row in rows]
    start = rows.index(["Name", "Role", "Type", "Shape", "Size", ""])
    assert rows[start + 1 : start + 3] == [
        [
            *("small", "other", "float32", "(1,)", "40.00 MiB"),
            "4 B of a storage of 40.00 MiB of NumPy held by AddBackward0",
        ],
        [
            *("wide", "other", "float32", "(1000, 1000)", "4 B"),
            "3.81 MiB from a storage of 4 B",
        ],
    ]
    assert ["driver total", "1.00 GiB", ""] in rows


def test_hidden_html_rows_are_summed() -> None:
    assert "… 60 more tensors, 1.79 MiB (all: show --top all, or top=None)" in fragment(
        snapshots.many()
    )
    assert "more tensor" not in html_page(snapshots.many())
    text = fragment(snapshots.list_of_ten_thousand())
    assert "history[0..9999]" in text and "x 10,000" in text


def test_snapshot_changes_html() -> None:
    rows = Reader(fragment(snapshots.grown())).rows
    rows = [[" ".join(cell.split()) for cell in row] for row in rows]
    assert ["history[10..19] x 10", "other", "float32", "(256,) each", "+10.00 KiB"] in rows
    assert ["allocated", "17.00 KiB", "30.00 KiB", "+13.00 KiB"] in rows


@pytest.mark.parametrize("kind", snapshots.KINDS)
def test_the_boxes_of_a_treemap_add_up(kind: str) -> None:
    snapshot = snapshots.KINDS[kind]()
    totals: dict[str, int] = {}
    for (device, _), size in snapshot.tensors.role_totals().items():
        totals[device] = totals.get(device, 0) + size
    for device, total in totals.items():
        if device.endswith("meta"):
            continue
        found = present.treemap(snapshot, device, View())
        assert (found is None) == (total == 0)
        if found is not None:
            assert sum(group.nbytes for group in found.groups) == total
            for group in found.groups:
                assert sum(box.nbytes for box in group.boxes) == group.nbytes
                assert snapshot.tensors.role_totals()[device, group.label] == group.nbytes


def test_a_page_begins_with_twenty_tensors() -> None:
    text = html_page(snapshots.many())
    assert 'data-opening="20"' in text
    assert len(text.encode()) < 300 * 1024
    # a cell of a notebook has no script to show the others with
    assert "<script" not in fragment(snapshots.many())


def test_equal_tensors_of_any_container_are_one_row_and_one_box() -> None:
    tensors = [snapshots.T(f"buf[{n}].state", (256,)) for n in range(3000)]
    tensors += [snapshots.T("made at train.py", (256,))] * 300
    snapshot = snapshots.snapshot_of(tensors)
    rows = [[" ".join(cell.split()) for cell in row] for row in Reader(fragment(snapshot)).rows]
    assert ["buf[*].state x 3,000", "other", "float32", "(256,) each", "2.93 MiB"] in rows
    assert ["made at train.py x 300", "other", "float32", "(256,) each", "300.00 KiB"] in rows
    (group,) = present.treemap(snapshot, "cpu", View()).groups
    assert (group.label, group.nbytes) == ("other", 3300 * 1024)
    assert [(box.label, box.nbytes) for box in group.boxes] == [
        ("buf[*].state x 3,000", 3000 * 1024),
        ("made at train.py x 300", 300 * 1024),
    ]


def test_small_ones_share_a_box() -> None:
    snapshot = snapshots.snapshot_of(snapshots.T(f"t{n}", (n + 1,)) for n in range(160))
    (group,) = present.treemap(snapshot, "cpu", View()).groups
    # the ten smallest have 1 to 10 floats
    assert [(box.label, box.nbytes) for box in group.boxes[150:]] == [("10 smaller", 220)]


def test_a_hostile_name_cannot_leave_the_picture() -> None:
    text = html_page(snapshots.hostile())
    assert '<svg class="tl-treemap"' in text
    assert "<img" not in text and "\x1b" not in text
    Reader(text)
