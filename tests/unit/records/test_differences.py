import pytest
from snapshot_builder import T, ledger_of, snapshot_of

from tensorlens import Difference
from tensorlens.records import FIGURES
from tensorlens.tensors import Change, Changes


def moved(changes: Changes) -> list[tuple[str, int]]:
    return [(change.tensor.name, change.nbytes) for change in changes]


def between(before: list[T], after: list[T]) -> Difference:
    found = snapshot_of(after) - snapshot_of(before)
    check_sums(found)
    assert Difference.from_json(found.to_json()) == found
    return found


def check_sums(found: Difference) -> None:
    """On every device the changes add up to that of the totals."""
    changed: dict[str, int] = {}
    for _, changes in found.kinds():
        for change in changes:
            device = change.tensor.device
            changed[device] = changed.get(device, 0) + change.nbytes
    totals: dict[str, int] = {}
    for role in found.roles:
        totals[role.device] = totals.get(role.device, 0) + role.change
    assert {device: change for device, change in totals.items() if change} == {
        device: change for device, change in changed.items() if change
    }


def test_appeared_gone_grown_and_shrunk() -> None:
    found = between(
        [T("a", (1,)), T("b", (2,)), T("c", (3,)), T("same", (4,))],
        [T("b", (5,)), T("c", (1,)), T("same", (4,)), T("d", (6,), born=("x.py", 7))],
    )
    assert moved(found.appeared) == [("d", 24)]
    assert moved(found.gone) == [("a", -4)]
    assert moved(found.grown) == [("b", 12), ("c", -8)]
    (change,) = found.appeared
    assert isinstance(change, Change)
    assert (change.before, change.after.born.lineno) == (None, 7)


def test_the_same_twice_is_no_change() -> None:
    tensors = [T("a", (1,)), T("b", (2,), device="cuda:0")]
    found = between(tensors, [T("a", (1,), storage=99), T("b", (2,), device="cuda:0")])
    assert [len(changes) for _, changes in found.kinds()] == [0, 0, 0]


def test_the_device_is_part_of_the_match() -> None:
    found = between([T("x", (2,))], [T("x", (2,), device="cuda:0")])
    assert moved(found.appeared) == [("x", 8)]
    assert moved(found.gone) == [("x", -8)]


def test_a_tensor_in_another_role_is_still_there() -> None:
    found = between([T("x", (2,), "input"), T("y", (1,))], [T("x", (2,)), T("y", (3,))])
    assert not found.appeared
    assert not found.gone
    assert moved(found.grown) == [("y", 8)]
    assert {role.role: role.change for role in found.roles} == {"input": -8, "other": 16}


@pytest.mark.parametrize(
    ("before", "after", "appeared", "gone", "grown"),
    [
        # equal ones go together first
        ([1, 2, 3], [3, 1, 2], [], [], []),
        ([1, 2], [2], [], [1], []),
        ([5], [5, 5, 5], [5, 5], [], []),
        # then by size
        ([10, 100], [11, 99], [], [], [(10, 11), (100, 99)]),
    ],
)
def test_repeated_names(before, after, appeared, gone, grown) -> None:
    found = between([T("x", (n,)) for n in before], [T("x", (n,)) for n in after])
    assert sorted(change.nbytes for change in found.appeared) == [4 * n for n in appeared]
    assert sorted(-change.nbytes for change in found.gone) == [4 * n for n in gone]
    pairs = [(c.before.storage_nbytes // 4, c.after.storage_nbytes // 4) for c in found.grown]
    assert sorted(pairs) == sorted(grown)


def test_the_birth_line_goes_before_the_size() -> None:
    found = between(
        [T("x", (10,), born=("a.py", 1)), T("x", (20,), born=("a.py", 2))],
        [T("x", (21,), born=("a.py", 1)), T("x", (9,), born=("a.py", 2))],
    )
    assert [(c.before.born.lineno, c.after.born.lineno, c.nbytes) for c in found.grown] == [
        (1, 1, 44),
        (2, 2, -44),
    ]


def test_an_alias_is_no_growth() -> None:
    found = between([T("a", (4,))], [T("a", (4,)), T("view", (4,), alias_of="a")])
    assert [len(changes) for _, changes in found.kinds()] == [0, 0, 0]


def test_a_storage_that_another_of_its_names_stands_for_is_no_change() -> None:
    before = [T("a", (4,), storage=64), T("view", (4,), alias_of="a")]
    found = between(before, [T("view", (4,), storage=64)])
    assert [len(changes) for _, changes in found.kinds()] == [0, 0, 0]
    before = [T("a", (4,), storage=64, also=("b",))]
    found = between(before, [T("b", (4,), storage=64)])
    assert [len(changes) for _, changes in found.kinds()] == [0, 0, 0]


def test_an_address_handed_out_again_is_a_change() -> None:
    found = between([T("a", (4,), storage=64)], [T("b", (4,), storage=64)])
    assert (moved(found.appeared), moved(found.gone)) == ([("b", 16)], [("a", -16)])


def test_the_ledger_changes_and_unknown_stays_unknown() -> None:
    before = snapshot_of([], {"cpu": ledger_of("cpu", 10, allocated=15), "gone": ledger_of("x", 1)})
    after = snapshot_of(
        [], {"cpu": ledger_of("cpu", 30, allocated=40, driver_total=None, reserved=None)}
    )
    change = (after - before).change("cpu")
    assert change == {
        "allocated": 25,
        "named": 20,
        "unnamed": 5,
        "reserved": None,
        "cached": None,
        "other": None,
        "driver_used": None,
        "driver_total": None,
    }
    assert change["allocated"] == change["named"] + change["unnamed"]
    assert set((after - before).change("gone")) == set(FIGURES)
    assert set((after - before).change("gone").values()) == {None}


def test_notes_of_both() -> None:
    before, after = snapshot_of(notes=("x", "y")), snapshot_of(notes=("x", "z"))
    assert (after - before).notes == ("x", "before: y", "after: z")


def test_minus_needs_a_snapshot() -> None:
    with pytest.raises(TypeError):
        snapshot_of() - 1  # type: ignore[operator]


def test_ten_thousand_of_one_name_are_matched() -> None:
    before = snapshot_of(T("saved", (n % 50 + 1,)) for n in range(10_000))
    after = snapshot_of(T("saved", (n % 50 + 3,)) for n in range(11_000))
    found = after - before
    check_sums(found)
    assert len(found.appeared) - len(found.gone) == 1000
