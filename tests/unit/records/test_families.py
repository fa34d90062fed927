import pytest
from snapshot_builder import T, table_of

from tensorlens.records import families


def folded(*tensors: T) -> list[tuple[str, int]]:
    table = table_of(tensors)
    return [(each.name, len(each.rows)) for each in families.families(table, table.counted())]


def listed(indices, **fields) -> list[T]:
    return [T(f"history[{n}]", **fields) for n in indices]


@pytest.mark.parametrize(
    ("indices", "name"),
    [
        ([5], "history[5]"),
        ([0, 1], "history[0,1]"),
        (range(10_000), "history[0..9999]"),
        ([3, 1, 2, 0], "history[0..3]"),
        ([*range(10), *range(20, 30)], "history[0...29]"),
        ([1, 3, 5], "history[1,3,5]"),
        ([1, 3, 5, 7, 9], "history[1...9]"),
    ],
)
def test_folded_ranges(indices, name) -> None:
    assert folded(*listed(indices)) == [(name, len(indices))]


@pytest.mark.parametrize(
    "other",
    [
        T("history[9]", (2,)),
        T("history[9]", role="input"),
        T("history[9]", device="cuda:0"),
        T("history[9]", dtype="int64"),
        T("history[9]", storage_nbytes=400),
        T("history[9]", held_by="AddBackward0"),
        T("history[9]", note="of NumPy"),
        T("history[9]", also=("same",)),
        T("future[9]"),
        T("history[9].x"),
        T("history"),
    ],
)
def test_different_rows_are_not_folded(other) -> None:
    assert folded(*listed(range(3)), other) == [("history[0..2]", 3), (other.name, 1)]


def test_items_of_one_list_are_one_row_whatever_lines_they_are_of() -> None:
    first, second = ("a.py", 1), ("a.py", 2)
    tensors = [T(f"feats[{n}]", born=first if n < 5 else second) for n in range(7)]
    assert folded(*tensors) == [("feats[0..6]", 7)]


def test_lists_in_lists() -> None:
    tensors = [T(f"h[{i}][{j}]") for i in range(2) for j in range(3)]
    assert folded(*tensors) == [("h[0][0..2]", 3), ("h[1][0..2]", 3)]


def spread(pattern: str, count: int) -> list[str]:
    return [pattern.replace("#", str(n)) for n in range(count)]


@pytest.mark.parametrize(
    ("names", "name"),
    [
        (spread("buf[#].state", 3000), "buf[*].state"),
        (spread("items[#].t", 9), "items[*].t"),
        (spread("rows[#]['x']", 9), "rows[*]['x']"),
        (spread("cache['k#']", 9), "cache[*]"),
        (spread("cache['k#']['k#']", 9), "cache[*][*]"),
        (spread("tree['k#'].left.right", 9), "tree[*].left.right"),
        ([f"a[{i}][{j}]" for i in range(3) for j in range(3)], "a[*][*]"),
        ([f"buf2[{i}][{j}]" for i in range(5) for j in (0, 2)], "buf2[*][*]"),
        # what all have in common is written
        (spread("data['train'][#].x", 9), "data['train'][*].x"),
        (spread("rows[#][2]", 9), "rows[*][2]"),
        (spread("states['h'][#]", 9), "states['h'][0..8]"),
        ([f"states['h'][{n}]" for n in range(0, 20, 2)], "states['h'][0...18]"),
        ([*spread("mixed[#]", 8), "mixed['k']"], "mixed[*]"),
    ],
)
def test_places_anywhere_in_a_name(names, name) -> None:
    assert folded(*map(T, names)) == [(name, len(names))]


@pytest.mark.parametrize(
    "names",
    [
        ["batch['input_ids']", "batch['attention_mask']"],
        spread("cache['k#']", 8),
        spread("buf[#].state", 8),
        spread("rows[#]['x']", 8),
        # an attribute is no place
        spread("model[0].layer#", 20),
    ],
)
def test_few_and_other_attributes_stay_apart(names) -> None:
    assert folded(*map(T, names)) == [(name, 1) for name in names]


@pytest.mark.parametrize("count", [2, 300])
@pytest.mark.parametrize("name", ["made at train.py:12 in step", "", "cache['k']", "buf[3].state"])
def test_repeated_name_is_not_folded(name, count) -> None:
    assert folded(*[T(name)] * count) == [(name, count)]


def test_one_name_of_several_among_few() -> None:
    names = ["cache['a']", "cache['b']", "cache['a']", "rows['x'][4]", "rows['x'][4]"]
    assert folded(*map(T, names)) == [("cache['a']", 2), ("cache['b']", 1), ("rows['x'][4]", 2)]


@pytest.mark.parametrize(
    "other",
    [
        T("buf[9].state", (2,)),
        T("buf[9].state", role="input"),
        T("buf[9].state", device="cuda:0"),
        T("buf[9].state", dtype="int64"),
        T("buf[9].state", storage_nbytes=400),
        T("buf[9].state", born=("a.py", 1)),
        T("buf[9].state", also=("same",)),
        T("buf[9].action"),
        T("buf[9]['state']"),
        T("buf[9][1].state"),
    ],
)
def test_difference_in_any_column_is_not_folded(other) -> None:
    tensors = [T(f"buf[{n}].state") for n in range(9)]
    assert folded(*tensors, other) == [("buf[*].state", 9), (other.name, 1)]


def test_one_text_put_together_in_several_ways() -> None:
    table = table_of([T(f"a.b[{n}].c") for n in range(9)] + [T("x")])
    names = table.names
    table.name[9] = names.attribute(names.index(names.attribute(names.text("a"), "b"), 9), "c")
    (family,) = families.families(table, range(10))
    assert family.name == "a.b[*].c"


def test_families_stand_where_their_first_stands() -> None:
    names = ["a", "h[0]", "b", "h[1]"]
    assert folded(*map(T, names)) == [("a", 1), ("h[0,1]", 2), ("b", 1)]


def test_rows_may_be_kept_apart() -> None:
    table = table_of(listed(range(4)))
    found = families.families(table, range(4), {0: "x", 1: "y", 2: "x", 3: "y"})
    assert [each.rows for each in found] == [(0, 2), (1, 3)]


def test_handles_are_one_family_whatever_their_names_and_births() -> None:
    handles = [
        T("a.handle", storage_nbytes=200, note=families.HANDLE, born=("a.py", 1)),
        T("b['x'].handle", storage_nbytes=200, note=families.HANDLE),
        T("c.handle", storage_nbytes=200, note=families.HANDLE, role="optimizer"),
    ]
    assert folded(*handles) == [("handles of variables", 2), ("c.handle", 1)]


def test_handles_of_datasets_are_one_family() -> None:
    handles = [
        T("rows._variant_tensor_attr", storage_nbytes=64, note=families.HANDLE_OF_DATA),
        T(
            "it._iterator_resource",
            storage_nbytes=200,
            note=families.HANDLE_OF_DATA,
            born=("a.py", 1),
        ),
        T("weight.handle", storage_nbytes=200, note=families.HANDLE),
    ]
    assert folded(*handles) == [("handles of datasets and iterators", 2), ("weight.handle", 1)]


def test_small_elements_of_datasets_are_one_family() -> None:
    elements = [
        T("batch of tf.data", storage_nbytes=8, note=families.AHEAD),
        T("batch of tf.data", storage_nbytes=256, note=families.AHEAD, born=("a.py", 1)),
        T("batch of tf.data", storage_nbytes=4096, note=families.AHEAD),
    ]
    assert folded(*elements) == [("batch of tf.data", 2), ("batch of tf.data", 1)]


def test_small_constants_of_one_graph_are_one_family() -> None:
    constants = [
        T("constants of f", storage_nbytes=4, note=families.KEPT),
        T("constants of f", storage_nbytes=1024, note=families.KEPT, born=("a.py", 1)),
        T("constants of g", storage_nbytes=4, note=families.KEPT),
        T("constants of f", storage_nbytes=1025, note=families.KEPT),
    ]
    assert folded(*constants) == [
        ("constants of f", 2),
        ("constants of g", 1),
        ("constants of f", 1),
    ]


@pytest.mark.parametrize(
    ("names", "name"),
    [
        (spread("layers.#.weight", 12), "layers[0-11].weight"),
        (spread("#.weight", 2), "[0,1].weight"),
        (["fc.0.bias", "fc.2.bias", "fc.4.bias"], "fc[0,2,4].bias"),
        ([f"a.{i}.w" for i in (0, 2, 4, 6, 9)], "a[0...9].w"),
        (spread("Adam.net.#.w.exp_avg", 3), "Adam.net[0-2].w.exp_avg"),
        (spread("net.#: GeluBackward0.self", 3), "net[0-2]: GeluBackward0.self"),
        (spread("main(): #.x", 3), "main(): [0-2].x"),
        ([f"h.{i}.e.{j}.w" for i in range(2) for j in range(3)], "h[0,1].e[0-2].w"),
        ([f"h.{i}.e[{j}].w[{k}]" for i in "01" for j in "3" for k in "01"], "h[0,1].e[3].w[0,1]"),
    ],
)
def test_layers_are_one_row(names, name) -> None:
    assert folded(*map(T, names)) == [(name, len(names))]


@pytest.mark.parametrize(
    "names",
    [
        ["made at train.py:12 in f", "made at train.py:13 in f"],
        ["step() at 3 steps", "step() at 4 steps"],
        ["conv1.weight", "conv2.weight"],
        ["cache[0.5]", "cache[1.5]"],
    ],
)
def test_numbers_that_are_no_part_of_a_path_tell_names_apart(names) -> None:
    assert folded(*map(T, names)) == [(name, 1) for name in names]


def test_layers_whose_holders_and_modules_differ_in_the_same_numbers() -> None:
    layers = [
        T(f"layers.{i}: MulBackward0.self", held_by=f"layers.{i}.fc: AddmmBackward0.mat1")
        for i in range(3)
    ]
    table = table_of([*layers, T("layers.3: MulBackward0.self", held_by="other")])
    first, second = families.families(table, table.counted())
    assert (first.name, len(first.rows)) == ("layers[0-2]: MulBackward0.self", 3)
    assert families.holder(table, first) == "layers[0-2].fc: AddmmBackward0.mat1"
    assert (second.name, families.holder(table, second)) == ("layers.3: MulBackward0.self", "other")


def test_handles_whose_holders_are_unlike_have_the_first() -> None:
    handles = [
        T("a.handle", note=families.HANDLE, held_by="steps[0]"),
        T("b.handle", note=families.HANDLE, held_by="cache"),
    ]
    table = table_of(handles)
    (family,) = families.families(table, range(2))
    assert families.holder(table, family) == "steps[0]"
