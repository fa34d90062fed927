import pytest
from snapshot_builder import T, table_of

from tensorlens.records.families import families, family_name


def folded(*tensors: T) -> list[tuple[str, int]]:
    table = table_of(tensors)
    return [(family_name(table, each), len(each)) for each in families(table, table.counted())]


def listed(indices, **fields) -> list[T]:
    return [T(f"history[{n}]", **fields) for n in indices]


@pytest.mark.parametrize(
    ("indices", "name"),
    [
        ([5], "history[5]"),
        ([0, 1], "history[0..1]"),
        (range(10_000), "history[0..9999]"),
        ([3, 1, 2, 0], "history[0..3]"),
        ([*range(10), *range(20, 30)], "history[0..9, 20..29]"),
        ([1, 3, 5], "history[1, 3, 5]"),
        ([1, 3, 5, 7, 9], "history[1, 3, 5, ...]"),
    ],
)
def test_ranges(indices, name) -> None:
    assert folded(*listed(indices)) == [(name, len(indices))]


@pytest.mark.parametrize(
    "other",
    [
        T("history[9]", (2,)),
        T("history[9]", role="input"),
        T("history[9]", device="cuda:0"),
        T("history[9]", dtype="int64"),
        T("history[9]", storage_nbytes=400),
        T("history[9]", born=("a.py", 1)),
        T("history[9]", held_by="AddBackward0"),
        T("history[9]", note="of NumPy"),
        T("history[9]", also=("same",)),
        T("future[9]"),
        T("history[9].x"),
        T("history"),
    ],
)
def test_what_differs_stays_apart(other) -> None:
    assert folded(*listed(range(3)), other) == [("history[0..2]", 3), (other.name, 1)]


def test_lists_in_lists() -> None:
    tensors = [T(f"h[{i}][{j}]") for i in range(2) for j in range(3)]
    assert folded(*tensors) == [("h[0][0..2]", 3), ("h[1][0..2]", 3)]


def test_families_stand_where_their_first_stands() -> None:
    names = ["a", "h[0]", "b", "h[1]"]
    assert folded(*map(T, names)) == [("a", 1), ("h[0..1]", 2), ("b", 1)]


def test_rows_may_be_kept_apart() -> None:
    table = table_of(listed(range(4)))
    found = families(table, range(4), {0: "x", 1: "y", 2: "x", 3: "y"})
    assert found == [[0, 2], [1, 3]]
