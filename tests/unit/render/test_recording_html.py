from collections.abc import Mapping

import pytest
import rendered_recordings as recordings
from rendered_recordings import HOSTILE, KIB, MS, SCRIPT, data_of
from test_html_renderer import Reader

from tensorlens import Recording
from tensorlens.records import ALLOC, START, Context, EventLog, Frame, Label, Origin
from tensorlens.render import View, fragment, html_page, printable


def page_of(kind: str, **view) -> str:
    return html_page(recordings.KINDS[kind](), View(**view) if view else None)


def cells_of(text: str) -> list[list[str]]:
    return [[" ".join(cell.split()) for cell in row] for row in Reader(text).rows]


@pytest.mark.parametrize("kind", recordings.KINDS)
def test_a_page_is_whole_and_offline(kind: str) -> None:
    text = page_of(kind)
    reader = Reader(text)
    assert not reader.tags & {"link", "img", "iframe", "b", "base", "form", "object"}
    assert not [name for name, _ in reader.attributes if name.startswith("on")]
    assert not [name for name, _ in reader.attributes if name in ("src", "href", "action")]
    assert text.startswith("<!doctype html>")
    text.encode("utf-8", "backslashreplace")


@pytest.mark.parametrize("kind", recordings.KINDS)
def test_a_fragment_is_whole_and_without_script(kind: str) -> None:
    reader = Reader(fragment(recordings.KINDS[kind]()))
    assert not reader.tags & {"script", "link", "img", "iframe", "b"}
    assert not [name for name, _ in reader.attributes if name.startswith("on")]
    assert not reader.unscoped()


def test_a_notebook_gets_the_fragment() -> None:
    recording = recordings.training()
    assert recording._repr_html_() == fragment(recording)
    assert recording.to_html() == html_page(recording)


@pytest.mark.parametrize("made", [page_of, lambda kind: fragment(recordings.KINDS[kind]())])
def test_no_text_of_the_user_breaks_out(made) -> None:
    text = made("hostile")
    for data in SCRIPT.findall(text):
        assert not set("<>&\u2028\u2029") & set(data)
    rest = SCRIPT.sub("", text)
    assert "alert(1)</script>" not in rest
    assert "<script>alert" not in rest
    assert "<!-- " not in rest
    assert "<b>bold" not in rest
    assert "{{" in rest and "ab" * 9 not in rest
    assert "\u2028" not in text and "\x1b" not in text


def test_the_hostile_names_are_still_there() -> None:
    text = page_of("hostile")
    name = " ".join(printable(HOSTILE).split())
    assert [name, "parameter", "100.00 KiB", "before", "before", "", ""] in cells_of(text)
    (data,) = data_of(text)
    assert data["device"] == printable(HOSTILE)
    assert printable(HOSTILE) in data["blocks"]["texts"]


def test_the_tables_of_a_training_step() -> None:
    rows = cells_of(page_of("training"))
    assert ["parameter", "100.00 KiB", "37.3 %"] in rows
    assert ["fc1: aten::addmm", "activation", "40.00 KiB", "2.00 ms"] == next(
        row[:4] for row in rows if row[0] == "fc1: aten::addmm"
    )
    assert ["140.00 KiB", "52.2 %", "train.py:2", "h = net(x)"] in rows
    assert ["2", "140.00 KiB", "100.00 KiB", "h = net(x)"] in rows  # at the peak, in backward
    assert ["3", "8.00 KiB", "", "loss = h.sum()"] in rows
    assert ["4", "", "", "loss.backward()"] in rows
    assert [
        *("100.00 KiB", "100.00 KiB", "100.00 KiB", "train.py:2", "h = net(x)"),
        "AddmmBackward0 100.00 KiB fc1.weight.grad 100.00 KiB",
    ] in rows
    assert ["+100.00 KiB", "+1", "gradient", "train.py:2", "h = net(x)"] in rows


def test_the_points_of_a_training_step() -> None:
    (data,) = data_of(page_of("training"))
    assert data["row"] == [-1, 2, 3, 4, 5, 6, 7, 8]
    assert data["total"] == [n * KIB for n in (120, 160, 168, 268, 228, 220, 250, 220)]
    assert data["count"] == [2, 3, 4, 5, 4, 3, 4, 3]
    assert data["peak"] == data["shown"] == 3
    blocks = data["blocks"]
    assert blocks["row"] == [0, 1, 2, 3, 4, 7]
    assert blocks["free"] == [-1, -1, 5, 6, -1, 8]
    assert blocks["size"] == [n * KIB for n in (100, 20, 40, 8, 100, 30)]
    assert [blocks["texts"][number] for number in blocks["line"]] == [
        *("", "", "train.py:2", "train.py:3", "train.py:2", "train.py:5"),
    ]


@pytest.mark.parametrize("kind", recordings.KINDS)
def test_html_points_add_up(kind: str) -> None:
    recording = recordings.KINDS[kind]()
    for data, device in zip(data_of(page_of(kind)), recording.devices[::-1], strict=False):
        blocks = data["blocks"]
        for at, total, count in zip(data["row"], data["total"], data["count"], strict=True):
            moment = recording.at(at, device)
            row = max(at, data["starts"] - 1)
            assert (total, count) == (moment.bytes, len(moment.tensors))
            carried = [
                (size, made)
                for made, freed, size in zip(
                    *(blocks[column] for column in ("row", "free", "size")), strict=True
                )
                if made <= row and (freed < 0 or freed > row)
            ]
            # all of them, as there are few
            assert sorted(carried) == sorted((each.nbytes, each.row) for each in moment.tensors)


def level(series: tuple[list[int], list[int]], point: int) -> int:
    points, levels = series
    return next((n for at, n in reversed([*zip(points, levels, strict=True)]) if at <= point), 0)


def without_zeros(sums: Mapping[str, int]) -> dict[str, int]:
    return {key: nbytes for key, nbytes in sums.items() if nbytes}


@pytest.mark.parametrize("kind", recordings.KINDS)
def test_roles_and_lines_at_each_point_are_those_of_the_instant(kind: str) -> None:
    recording = recordings.KINDS[kind]()
    for data, device in zip(data_of(page_of(kind)), recording.devices[::-1], strict=False):
        for point, at in enumerate(data["row"]):
            moment = recording.at(at, device)
            roles = {role: levels[point] for role, levels in data["roles"].items()}
            assert without_zeros(roles) == without_zeros(moment.by_role)
            own = [line for line in data["lines"] if line["of"] < 0]
            lines = [level(line["levels"], point) for line in own]
            assert sorted(filter(None, lines)) == sorted(filter(None, moment.by_line.values()))
            models = [level(line["levels"], point) for line in data["lines"] if line["of"] >= 0]
            expected = moment.by_model_line.values()
            assert sorted(filter(None, models)) == sorted(filter(None, expected))


def test_a_page_begins_with_the_instant_asked_for() -> None:
    recording = recordings.training()
    full = html_page(recording, View(at="backward"))
    (data,) = data_of(full)
    assert data["row"][data["shown"]] == 3 and data["peak"] == 3 - 1 + 1
    assert "168.00 KiB (172,032 B) in 4 blocks, after 2.00 ms, in forward at" in full


def test_a_peak_that_was_dropped_is_told_from_the_one_that_was_kept() -> None:
    text = page_of("dropped")
    assert "peak 510 B in 2 blocks, after 2.00 ms, before the first event that was kept" in text
    assert "1,234 earlier events dropped" in text
    (data,) = data_of(text)
    assert data["peakCalled"] == "At the highest instant that was kept"
    assert data["total"][data["peak"]] == 35
    first = data["dropped"]
    assert (data["shown"], first["total"], first["count"], first["time"]) == (-1, 510, 2, 2 * MS)
    assert (first["blocks"]["size"], first["blocks"]["time"]) == ([500, 10], [2 * MS, -1])
    assert data_of(page_of("training"))[0]["dropped"] is None


def test_a_peak_that_was_dropped_has_the_lines_of_models() -> None:
    before = EventLog()
    user, model = (
        Frame("train.py", 7, "<module>"),
        Frame("/env/site-packages/timm/vit.py", 8, "Vit.forward", user=False),
    )
    before.append(START, "cpu", 0x300, 500, 2 * MS, before.stacks.push(-1, user))
    before.append(START, "cpu", 0x400, 60, 2 * MS, before.stacks.add([model, user]))
    recording = Recording(EventLog(), Origin(dropped=1, dropped_peaks={"cpu": before}))
    recording.log.append(START, "cpu", 0x100, 10, 0)
    (data,) = data_of(html_page(recording))
    lines = [(line["number"], line["of"], nbytes) for line, nbytes in data["dropped"]["lines"]]
    assert lines == [(0, -1, 560), (1, 0, 60)]
    assert "vit.py:8" in data["dropped"]["lines"][1][0]["place"]


def test_html_of_one_device() -> None:
    text = page_of("two devices", devices=("cuda:0",))
    assert [data["device"] for data in data_of(text)] == ["cuda:0"]
    assert "Not shown: cpu (peak 4.00 KiB)" in text
    (data,) = data_of(text)
    assert data["reserved"] is not None and max(data["reserved"]) == 20 * KIB * KIB


def test_very_long_names_are_clipped() -> None:
    log = EventLog()
    name = "n" * 5000
    stack = log.stacks.push(-1, recordings.CALL, name)
    log.append(ALLOC, "cpu", 1, 100, 0, stack, Context(op="aten::mm"))
    log.name(0, Label(name, "other"))
    recording = Recording(log)
    for page in (recording.to_html(), recording._repr_html_()):
        # 200 columns with the mark that it was cut
        assert ">" + "n" * 199 + "…<" in page.replace(" <", "<")
    (data,) = data_of(recording.to_html())
    assert "n" * 199 + "…" in data["blocks"]["texts"]
    assert not any(len(text) > 200 for text in data["blocks"]["texts"])
