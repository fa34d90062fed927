import json
from dataclasses import replace
from typing import Any

import pytest
from snapshot_builder import T, ledger_of, snapshot_of

from tensorlens import Difference, LineReport, Snapshot, TensorlensError, load
from tensorlens.errors import FileFormatError, UsageError
from tensorlens.loading import parse
from tensorlens.records import Part, Run, SourceLine, UnnamedBlock, table_rows
from tensorlens.render import View

LEDGER = ledger_of(
    "cpu",
    16,
    allocated=24,
    driver_total=None,
    parts=(Part("cached", "free", "largest free", None, "why"),),
    explanations={"cached": "what"},
    missing={"driver_total": "because"},
    blocks=(
        UnnamedBlock(4096, 8, SourceLine("a.py", 1, "f"), (SourceLine("b.py", 2, "g"),), "mm"),
    ),
    block_count=1,
)
TENSORS = [
    T("net.weight", (2,), "parameter", also=("tied.weight",), born=("a.py", 3)),
    T("h[0]", (1,), held_by="me", note="of NumPy", module="net"),
    T("h[1]", (1,), "activation", storage=2**64 - 1),
    T("view", (1,), alias_of="net.weight", offset=1),
]
SNAPSHOT = snapshot_of(TENSORS, {"cpu": LEDGER}, process="rank 0", notes=("one", "two"))
LATER = snapshot_of([*TENSORS[1:3], T("new", (9,)), T("h[7]", (3,))], {"cpu": LEDGER})


def named(snapshot: Snapshot) -> dict[str, int]:
    totals: dict[str, int] = {}
    for tensor in snapshot.tensors:
        if tensor.alias_of is None:
            totals[tensor.device] = totals.get(tensor.device, 0) + tensor.storage_nbytes
    return totals


@pytest.mark.parametrize("snapshot", [snapshot_of(), SNAPSHOT])
def test_a_snapshot_reads_back_equal(snapshot: Snapshot) -> None:
    assert Snapshot.from_json(snapshot.to_json()) == snapshot
    assert parse(snapshot.to_json()) == snapshot


def test_load_tells_records_by_their_schema() -> None:
    assert parse(LineReport((), ()).to_json()) == LineReport((), ())
    difference = LATER - SNAPSHOT
    assert parse(difference.to_json()) == difference
    for text in ("", "{", "[1]", "{}", '{"schema": []}', '{"schema": "x"}', "[" * 100_000):
        with pytest.raises(FileFormatError):
            parse(text)


def test_picked_rows_keep_no_names_of_the_others() -> None:
    table = table_rows(SNAPSHOT.tensors, [2])
    assert list(table) == [SNAPSHOT.tensors[2]]
    assert table.names.texts == ["h"]
    assert (table.lines, table.holders, table.more_names) == ([], [], {})


def test_merged_parts_stay_apart_and_add_up() -> None:
    both = Snapshot.merged({"rank0": SNAPSHOT, "rank1": LATER})
    # 8 + 4 + 4 bytes, and 4 + 4 + 36 + 12
    assert named(both) == {"rank0/cpu": 16, "rank1/cpu": 56}
    assert [each.name for each in both.tensors] == (
        ["net.weight", "h[0]", "h[1]", "view", "h[0]", "h[1]", "new", "h[7]"]
    )
    assert both.tensors[0].names == ("net.weight", "tied.weight")
    assert both.tensors[3].alias_of == "net.weight"
    assert both.ledger["rank0/cpu"].device == "rank0/cpu"
    assert both.ledger["rank0/cpu"].allocated == 24
    assert both.notes == ("rank0: one", "rank0: two")
    assert both.process == "merged: rank0, rank1"


def test_merged_parts_tell_the_versions_and_cards_of_all() -> None:
    runs = [
        Run("train.py", 0, 1, "node", "3.11", "Linux", "0.1", {"torch": version}, (card,))
        for version, card in (("2.12", "T4"), ("2.13", "L4"))
    ]
    parts = {f"rank{at}": replace(SNAPSHOT, run=run) for at, run in enumerate(runs)}
    run = Snapshot.merged(parts).run
    assert run is not None and run.versions["torch"] == "2.13" and run.devices[:2] == ("T4", "L4")


def test_merged_can_be_merged_again() -> None:
    both = Snapshot.merged({"rank0": SNAPSHOT, "rank1": LATER})
    more = Snapshot.merged({"a": both, "b": SNAPSHOT})
    assert named(more) == {"a/rank0/cpu": 16, "a/rank1/cpu": 56, "b/cpu": 16}
    assert list(more.ledger) == ["a/rank0/cpu", "a/rank1/cpu", "b/cpu"]
    assert Snapshot.from_json(more.to_json()) == more
    assert named(Snapshot.merged({})) == {}


@pytest.mark.parametrize("fields", [{"top": -1}, {"min_size": -1}, {"roles": ("weights",)}])
def test_a_view_refuses_what_it_cannot_show(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as raised:
        View(**fields)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("wanted", "device", "shown"),
    [
        ("cuda:0", "cuda:0", True),
        ("cuda", "cuda:0", True),
        ("cuda:1", "cuda:10", False),
        ("cpu", "cuda:0", False),
        ("rank1", "rank1/cuda:0", True),
        ("rank1", "rank11/cuda:0", False),
        ("rank1/cuda", "rank1/cuda:0", True),
        ("cuda:0", "rank1/cuda:0", True),
        ("cuda", "a/rank1/cuda:0", True),
    ],
)
def test_devices_of_a_view(wanted: str, device: str, shown: bool) -> None:
    assert View(devices=(wanted,)).shows_device(device) is shown


def damaged(**changes: Any) -> str:
    data = SNAPSHOT.to_dict()
    for path, value in changes.items():
        *parts, last = path.split("__")
        place: Any = data
        for part in parts:
            place = place[part]
        place[last] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    "changes",
    [
        {"tensors": None},
        {"tensors__nbytes": [1.5] * 4},
        {"tensors__nbytes": [float("nan")] * 4},
        {"tensors__nbytes": [2**70] * 4},
        {"tensors__more_names": []},
        {"ledger": []},
        {"ledger__cpu": 1},
        {"ledger__cpu__blocks": [{}]},
        {"version": 2},
    ],
)
def test_a_damaged_snapshot_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(FileFormatError) as raised:
        Snapshot.from_json(damaged(**changes))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("record", [SNAPSHOT, LATER - SNAPSHOT], ids=["snapshot", "difference"])
def test_a_file_cut_short_is_refused(record: Snapshot | Difference) -> None:
    text = record.to_json()
    for end in range(0, len(text) - 1, 37):
        with pytest.raises(FileFormatError):
            parse(text[:end])


def test_a_file_is_loaded_by_its_path(tmp_path) -> None:
    snapshot = snapshot_of([T("a", (2,))])
    path = tmp_path / "a.json"
    path.write_text(snapshot.to_json())
    assert load(path) == load(str(path)) == snapshot
    with pytest.raises(TensorlensError, match="there is no file"):
        load(tmp_path / "b.json")


def test_names_below_a_name_that_is_missing_are_damage():
    data = json.loads(SNAPSHOT.to_json())
    data["tensors"]["names"]["parents"][2] = 99
    with pytest.raises(FileFormatError, match=r"^damaged snapshot: "):
        Snapshot.from_dict(data)
