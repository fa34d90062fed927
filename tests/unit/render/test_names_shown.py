import itertools

import pytest
from rendered_snapshots import T, snapshot_of

from tensorlens.records import readable_name
from tensorlens.render import TextRenderer, View, distinct_names, width

_PATH = "m.base_model.model.model.layers.{}.self_attn.{}_proj.lora_{}.default.weight"
LORA = [_PATH.format(*each) for each in itertools.product(range(4), "qv", "AB")]
LORA += [f"AdamW.{name}.{slot}" for name in LORA for slot in ("exp_avg", "exp_avg_sq")]
NODES = [
    f"model.transformer.h.{layer}.{part}: {node}"
    for layer in range(12)
    for part in ("attn", "attn.c_attn", "mlp")
    for node in ("ScaledDotProductFlashAttentionForCpuBackward0.output", "GeluBackward0.self")
]
FILES = [f"/home/someone/projects/{a}/training/{b}/train.py:12" for a in "xyz" for b in "pqr"]


@pytest.mark.parametrize("ellipsis", ["…", "..."])
@pytest.mark.parametrize("room", [100, 60, 48, 40, 32])
@pytest.mark.parametrize("texts", [LORA, NODES, FILES], ids=["lora", "nodes", "files"])
def test_different_names_never_look_alike(texts, room, ellipsis) -> None:
    shown = distinct_names(texts, [room] * len(texts), ellipsis)
    assert len({*shown}) == len(texts)
    assert max(map(width, shown)) <= room


def test_wide_names_stay_within_their_room() -> None:
    texts = [f"{first}层注意力权重矩阵输出投影偏置参数" for first in "甲乙"]
    shown = distinct_names(texts, [10, 10], "…")
    assert len({*shown}) == 2
    assert max(map(width, shown)) <= 10


def test_common_prefix_is_cut_first() -> None:
    shown = distinct_names(LORA[:4], [44] * 4, "…")
    assert shown == [
        "m…layers.0…q_proj.lora_A.default.weight",
        "m…layers.0…q_proj.lora_B.default.weight",
        "m…layers.0…v_proj.lora_A.default.weight",
        "m…layers.0…v_proj.lora_B.default.weight",
    ]


def test_a_place_keeps_its_line() -> None:
    places = [f"modeling_bert.py:{line}" for line in (192, 193)] + ["activations.py:9"]
    assert distinct_names(places, [18] * 3, "…") == [
        "modeli…bert.py:192",
        "modeli…bert.py:193",
        "activations.py:9",
    ]


def test_fitting_names_are_unchanged() -> None:
    assert distinct_names(["a.b", "a.b", "c"], [3, 3, 1], "…") == ["a.b", "a.b", "c"]
    first, second = distinct_names([LORA[0]] * 2, [60, 44], "…")
    assert first == second and width(first) <= 44


@pytest.mark.parametrize(
    "texts", [["a" * 90 + "b" * 90, "a" * 90 + "c" * 90], ["x" * 50, "x" * 51]]
)
def test_names_without_parts(texts) -> None:
    shown = distinct_names(texts, [20, 20], "…")
    assert max(map(width, shown)) <= 20
    assert len({*shown}) == 2 or set("".join(texts)) == {"x"}


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if "float32" in line]


@pytest.mark.parametrize("limit", [80, 100, 120])
def test_rows_of_a_snapshot_differ(limit) -> None:
    # each of another size, so that none are one row
    tensors = [T(name, (64 + place,)) for place, name in enumerate(LORA)]
    text = TextRenderer(view=View(top=None), width=limit).render(snapshot_of(tensors))
    names = [line.split()[0] for line in text.splitlines() if line.startswith(("  m", "  A"))]
    assert len({*names}) == len(names) == len(LORA)


def test_folded_layers_are_expanded_in_explanations() -> None:
    tensors = [T(name, (8, 64), "parameter") for name in LORA if not name.startswith("AdamW")]
    text = TextRenderer(width=125).render(snapshot_of(tensors))
    assert [line.split("  ")[1] for line in rows(text)] == [
        f"m.base_model.model.model.layers[0-3].self_attn.{proj}_proj.lora_{lora}.default.weight x 4"
        for proj, lora in itertools.product("qv", "AB")
    ]


def test_after_a_long_part_went_others_have_its_room() -> None:
    node = "ScaledDotProductFlashAttentionForCpuBackward0"
    names = [f"model.transformer.h.{layer}.attn: {node}.key" for layer in range(3)]
    assert distinct_names(names, [32] * 3, "…") == [
        f"model.transformer.h.{layer}.attn:…key" for layer in range(3)
    ]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("h[0-3].mlp: GeluBackward0.self", "h[0-3].mlp: saved by Gelu"),
        ("LogSoftmaxBackward0.result", "saved by LogSoftmax"),
        (
            "net.norm: NativeLayerNormBackward0.result1",
            "net.norm: saved by NativeLayerNorm (result1)",
        ),
        ("fc: AddmmBackward0", "fc: AddmmBackward0"),
        ("fc.weight", "fc.weight"),
    ],
)
def test_readable_names_of_saved_tensors(name: str, shown: str) -> None:
    assert readable_name(name) == shown


def test_a_line_keeps_its_number_where_its_function_is_long() -> None:
    places = [
        "modeling_t5.py:1054 in T5ForConditionalGeneration.forward",
        "modeling_t5.py:1058 in T5ForConditionalGeneration.forward",
        "modeling_t5.py:354 in T5Attention.forward",
    ]
    for room in range(32, 58):
        shown = distinct_names(places, [room] * len(places), "…")
        assert len(set(shown)) == len(places) and max(map(len, shown)) <= room
        for place, text in zip(places, shown, strict=True):
            assert text.startswith(place.partition(" ")[0])


def test_the_path_of_a_keras_layer_is_left_out_by_its_parts():
    names = [
        "Adam.conv2d_transpose_1/kernel.momentum",
        "Adam.conv2d_transpose_2/kernel.momentum",
        "Adam.conv2d_1/kernel.momentum",
    ]
    assert distinct_names(names, [38] * 3, "…") == [
        "Adam.conv2d_transpose_1…momentum",
        "Adam.conv2d_transpose_2…momentum",
        "Adam.conv2d_1/kernel.momentum",
    ]
    # the only part beside the last is what tells most
    assert distinct_names(["conv2d_transpose_1: Conv2DBackpropInput"], [38], "…") == [
        "conv2d_transp…e_1: Conv2DBackpropInput"
    ]
