import re
from dataclasses import replace

import pytest
import rendered_snapshots as snapshots
from rendered_snapshots import MIB
from snapshot_builder import T, ledger_of, snapshot_of

from tensorlens.records import Part, UnnamedBlock
from tensorlens.render import TextRenderer, View, shortened, width


def text_of(record, limit: int = 80, **view) -> str:
    chosen = View(**view) if view else None
    return TextRenderer(width=limit, encoding="utf-8", view=chosen).render(record)


def lines_with(text: str, words: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if words in line]


@pytest.mark.parametrize("limit", [60, 80, 120, 200])
@pytest.mark.parametrize("kind", snapshots.KINDS)
@pytest.mark.parametrize("view", [View(), View(top=3, verbose=True, explain=True)])
def test_text_is_clean(kind: str, limit: int, view: View) -> None:
    text = TextRenderer(width=limit, encoding="utf-8", view=view).render(snapshots.KINDS[kind]())
    check_clean(text, limit)


@pytest.mark.parametrize("limit", [60, 80, 120])
@pytest.mark.parametrize("kind", snapshots.changes())
def test_text_of_changes_is_clean(kind: str, limit: int) -> None:
    check_clean(text_of(snapshots.changes()[kind], limit), limit)


def check_clean(text: str, limit: int) -> None:
    assert text.endswith("\n")
    for line in text.splitlines():
        assert line == line.rstrip()
        assert not line or line.isprintable()
        # a word that is longer than the line is left whole
        # and below 80 the columns that always stay may leave no room
        fits = limit < 80 or width(line) <= limit
        assert fits or " " not in line.strip() or "xxx" in line or "記" in line


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
@pytest.mark.parametrize("kind", snapshots.KINDS)
def test_snapshot_in_narrow_encoding(kind: str, encoding: str) -> None:
    text = TextRenderer(width=80, encoding=encoding).render(snapshots.KINDS[kind]())
    text.encode(encoding)
    assert "---" in text or kind == "empty"


def test_empty_snapshot_text() -> None:
    assert text_of(snapshots.empty()) == "Tensors in memory\n  no tensors found\n"


def test_text_of_one_tensor() -> None:
    # 256 * 1024 floats are 1 MiB; the device has 1 GiB
    assert text_of(snapshots.one_tensor()) == (
        "Tensors in memory\n"
        "  cpu  counting allocator, exact\n"
        "\n"
        "cpu  1.00 MiB in 1 tensor, all of 1.00 MiB allocated\n"
        "  Role   Tensors      Size    Share\n"
        "  " + "─" * 33 + "\n"
        "  other        1  1.00 MiB  100.0 %\n"
        "\n"
        "  Name  Role   Type     Shape            Size\n"
        "  " + "─" * 43 + "\n"
        "  x     other  float32  (256, 1024)  1.00 MiB\n"
        "\n"
        "  Ledger                  Size\n"
        "  " + "─" * 60 + "\n"
        "  driver total        1.00 GiB\n"
        "    free           1023.00 MiB\n"
        "    in use            1.00 MiB\n"
        "      other                0 B  other processes and the kernel\n"
        "      reserved        1.00 MiB  the process's resident set\n"
        "        cached             0 B\n"
        "        allocated     1.00 MiB\n"
        "          named       1.00 MiB\n"
        "          unnamed          0 B\n"
    )


def test_roles_in_their_order_and_tensors_by_size() -> None:
    text = text_of(snapshots.all_roles())
    # 1 to 7 times 4 KiB, 28 times 4 KiB together
    assert "cpu  112.00 KiB in 7 tensors, all of 112.00 KiB allocated" in text
    assert lines_with(text, " %") == [
        "parameter 1 4.00 KiB 3.6 %",
        "buffer 1 8.00 KiB 7.1 %",
        "gradient 1 12.00 KiB 10.7 %",
        "optimizer 1 16.00 KiB 14.3 %",
        "activation 1 20.00 KiB 17.9 %",
        "input 1 24.00 KiB 21.4 %",
        "other 1 28.00 KiB 25.0 %",
    ]
    assert [line.split()[0] for line in lines_with(text, "float32")] == [
        *("t.other", "t.input", "t.activation", "t.optimizer"),
        *("t.gradient", "t.buffer", "t.parameter"),
    ]


def test_a_ledger_adds_up() -> None:
    text = text_of(snapshots.two_devices(), 100)
    assert "cuda:0  2.00 MiB in 2 tensors, 11.00 MiB allocated: 9.00 MiB unnamed\n" in text
    ledger = text.split("  driver total")[2].split("\n\n")[0]
    assert "  driver total" + ledger == (
        "  driver total       1.00 GiB\n"
        "    free           924.00 MiB\n"
        "    in use         100.00 MiB\n"
        "      other         80.00 MiB  context 50.00 MiB, other processes 30.00 MiB\n"
        "      reserved      20.00 MiB\n"
        "        cached       9.00 MiB  largest free block 6.00 MiB\n"
        "        allocated   11.00 MiB\n"
        "          named      2.00 MiB\n"
        "          unnamed    9.00 MiB  3 blocks, largest 8.00 MiB born at train.py:12\n"
        "              8.00 MiB  aten::mm  born at train.py:12 in step\n"
        "              512.00 KiB  nothing is known of it\n"
        "              and 1 more, 512.00 KiB"
    )


def test_a_part_of_a_figure_is_never_torn_from_its_size() -> None:
    parts = tuple(Part("cached", str(n), f"part {n}", 0, "") for n in range(12))
    ledger = ledger_of("cpu", 0, parts=parts)
    text = text_of(snapshot_of([], {"cpu": ledger}), 80)
    lines = text.split("cached")[1].split("allocated")[0].splitlines()
    assert len(lines) > 2 and "\xa0" not in text
    assert all(re.search(r"part \d+ 0 B,?$", line) for line in lines if line.strip())


def test_devices_without_memory_stand_last_in_one_line() -> None:
    assert text_of(snapshots.two_devices()).endswith(
        "\n\nmeta  1 tensor, no memory (would take 40 B)\n"
    )


def test_explain_tells_what_each_figure_is() -> None:
    assert "Reserved, but not handed out." not in text_of(snapshots.two_devices())
    text = text_of(snapshots.two_devices(), explain=True)
    assert "\n            Reserved, but not handed out.\n" in text
    assert "\n            largest free block: The largest to be had.\n" in text


def test_unknown_is_not_zero_and_has_its_reason() -> None:
    text = text_of(snapshots.unknown_figures())
    assert "mps  4.00 KiB in 1 tensor, n/a allocated\n" in text
    assert lines_with(text, " unnamed ") == ["unnamed n/a"]
    assert "\n  n/a: allocated, unnamed: Metal keeps no count\n" in text
    assert "\n  n/a: driver total: it shares the machine's\n" in text
    assert "free" not in text


def test_tied_names_are_all_there() -> None:
    assert "\n      = head.weight\n" in text_of(snapshots.tied())


def test_text_of_views() -> None:
    text = text_of(snapshots.views())
    assert lines_with(text, "float32") == [
        "small other float32 (1,) 40.00 MiB",
        "wide other float32 (1000, 1000) 4 B",
    ]
    assert "\n      4 B of a storage of 40.00 MiB\n      of NumPy\n" in text
    assert "\n      held by AddBackward0\n" in text
    assert "\n      3.81 MiB from a storage of 4 B\n" in text
    assert "1 tensor shares the storage of another" in text
    verbose = text_of(snapshots.views(), verbose=True)
    assert "\n      shared by small.T  (1,), stride (1,), from element 7\n" in verbose
    assert "\n      storage 0x1000, stride (1,)\n" in verbose


def test_ten_thousand_in_one_list_are_one_row() -> None:
    text = text_of(snapshots.list_of_ten_thousand())
    assert "cpu  39.06 KiB in 10,000 tensors, all of 39.06 KiB allocated" in text
    assert lines_with(text, "history") == [
        "history[0..9999] x 10,000 other float32 () each 39.06 KiB train.py:9"
    ]
    assert "more" not in text


REPLAY = [
    *(T(f"buf[{n}].state", (256,)) for n in range(3000)),
    *(T(f"rows[{n}]['x']", (256,)) for n in range(2000)),
    *[T("made at train.py:12 in step", (256,), "activation")] * 300,
    *(T(f"cache['k{n}']", (256,)) for n in range(100)),
    T("batch['input_ids']", (256,), "input"),
    T("batch['attention_mask']", (256,), "input"),
]


def test_equal_tensors_of_any_container_are_one_row() -> None:
    assert lines_with(text_of(snapshot_of(REPLAY), 100), "float32") == [
        "buf[*].state x 3,000 other float32 (256,) each 2.93 MiB",
        "rows[*]['x'] x 2,000 other float32 (256,) each 1.95 MiB",
        "made at train.py:12 in step x 300 activation float32 (256,) each 300.00 KiB",
        "cache[*] x 100 other float32 (256,) each 100.00 KiB",
        "batch['attention_mask'] input float32 (256,) 1.00 KiB",
        "batch['input_ids'] input float32 (256,) 1.00 KiB",
    ]


def test_equal_tensors_that_appeared_or_went_are_one_row() -> None:
    some, none = snapshot_of(REPLAY[:5300]), snapshot_of([], {"cpu": ledger_of("cpu", 0)})
    for difference, sign in ((some - none, "+"), (none - some, "-")):
        assert lines_with(text_of(difference, 100), "float32") == [
            f"buf[*].state x 3,000 other float32 (256,) each {sign}2.93 MiB",
            f"rows[*]['x'] x 2,000 other float32 (256,) each {sign}1.95 MiB",
            f"made at train.py:12 in step x 300 activation float32 (256,) each {sign}300.00 KiB",
        ]


def test_hidden_rows_are_summed() -> None:
    # 1 to 100 KiB, 5050 KiB in all; the 40 largest are 61 to 100 KiB
    text = text_of(snapshots.many())
    assert "cpu  4.93 MiB in 100 tensors" in text
    assert len(lines_with(text, "float32")) == 40
    assert "\n  … 60 more tensors, 1.79 MiB (all: show --top all, or top=None)\n" in text
    assert (
        len(lines_with(TextRenderer(80, "utf-8", View(top=None)).render(snapshots.many()), "f"))
        >= 100
    )
    text = text_of(snapshots.many(), top=2, min_size=99 * 1024)
    assert lines_with(text, "more") == ["… 98 more tensors, 4.74 MiB (smaller than min_size)"]
    text = text_of(snapshots.many(), top=1, min_size=98 * 1024)
    assert lines_with(text, "more") == [
        "… 97 more tensors, 4.64 MiB (smaller than min_size)",
        "… 2 more tensors, 197.00 KiB (all: show --top all, or top=None)",
    ]


def test_other_roles_and_devices_are_summed() -> None:
    text = text_of(snapshots.two_devices(), roles=("gradient",), devices=("cuda",))
    assert lines_with(text, "more tensor") == ["… 1 more tensor, 1.00 MiB (of other roles)"]
    assert text.endswith("\nNot shown: cpu (768.00 KiB in 1 tensor), meta (40 B in 1 tensor)\n")


@pytest.mark.parametrize("limit", [80, 100, 120])
def test_the_end_of_a_name_is_never_lost(limit: int) -> None:
    name = "model." + "encoder.block." * 20 + "attention.weight"
    text = text_of(snapshot_of([T(name, (64, 64, 3, 3), "activation")]), limit)
    (row,) = lines_with(text, "model")
    assert re.match(r"model\S*…\S*\.weight activation ", row)
    assert max(map(width, text.splitlines())) <= limit


def test_shortened_text() -> None:
    assert shortened("abc", 3, "…") == "abc"
    assert shortened("encoder.layer.weight", 12, "…") == "enco….weight"
    assert shortened("a" * 50, 10, "...") == "aaa...aaaa"
    assert shortened("記憶體.記憶體", 9, "…") == "….記憶體"


def test_the_type_gives_way_to_the_name() -> None:
    text = text_of(snapshot_of([T("n" * 40, (64, 3, 7, 7), "activation")]), 80)
    assert "n" * 40 in text
    assert "float32" not in text
    assert "Left out to fit 80 characters: Type." in text


def test_births_give_way_last() -> None:
    tensors = [T("n" * 28, (64, 3, 7, 7), "activation", born=("training.py", 12))]
    text = text_of(snapshot_of(tensors), 80)
    assert "Left out to fit 80 characters: Shape." in text and "training.py:12" in text
    assert "Type, Shape, Born." in text_of(snapshot_of(tensors), 60)
    assert "born at training.py:12 in step" in text_of(snapshot_of(tensors), 80, verbose=True)


def test_memory_beside_the_allocator() -> None:
    snapshot = snapshot_of([T("x", (MIB,))], {"cpu": ledger_of("cpu", 3 * MIB)})
    assert "cpu  4.00 MiB in 1 tensor (1.00 MiB of it not from the allocator)" in text_of(snapshot)
    snapshot = snapshot_of([T("x", (1,))], {"cpu": ledger_of("cpu", 512)})
    assert "cpu  4 B in 1 tensor (512 B as allocated), all of 512 B" in text_of(snapshot)


def test_merged_devices_stay_apart() -> None:
    text = text_of(snapshots.merged())
    heads = [line for line in text.splitlines() if re.match(r"rank\d/", line)]
    assert [line.split("  ")[0] for line in heads] == [
        *("rank0/cpu", "rank0/cuda:0", "rank1/cpu", "rank1/cuda:0"),
        *("rank0/meta", "rank1/meta"),
    ]
    assert text.startswith("Tensors in memory, merged: rank0, rank1\n")


def test_control_characters_are_escaped() -> None:
    text = text_of(snapshots.hostile(), 120)
    assert "\x1b" not in text and "\u202e" not in text and "\r" not in text
    assert "<b>bold</b>" in text


def test_a_difference_names_the_list_that_keeps_graphs() -> None:
    tensors = [
        *(T("fc1: ReluBackward0.result", (256,), "activation") for _ in range(3)),
        *(T(f"losses[{n}]", (), "activation") for n in range(3)),
        T("other[0]", (256,)),
    ]
    text = text_of(snapshot_of(tensors) - snapshot_of(), 100)
    said = "losses[0..2] x 3 may keep the autograd graphs that saved 3 tensors, 3.00 KiB"
    assert f"\n  {said}\n" in text
    assert "autograd graphs" not in text_of(snapshot_of(tensors[3:]) - snapshot_of())
    assert "autograd graphs" not in text_of(snapshot_of() - snapshot_of(tensors))


def test_snapshot_changes_text() -> None:
    # cache +2 KiB, buffer -2 KiB, ten more of 1 KiB, 2 KiB lost; 18 KiB before, 26 KiB after
    text = text_of(snapshots.grown(), 100)
    assert text == (
        "Changes in memory\n"
        "\n"
        "cpu  +8.00 KiB in tensors (17.00 KiB to 25.00 KiB), allocated +13.00 KiB,"
        " unnamed +5.00 KiB\n"
        "  Role           Before      After      Change\n"
        "  " + "─" * 44 + "\n"
        "  activation   2.00 KiB        0 B   -2.00 KiB\n"
        "  other       15.00 KiB  25.00 KiB  +10.00 KiB\n"
        "\n"
        "  10 tensors appeared, +10.00 KiB\n"
        "  Name                  Role   Type     Shape            Change\n"
        "  " + "─" * 61 + "\n"
        "  history[10..19] x 10  other  float32  (256,) each  +10.00 KiB\n"
        "\n"
        "  1 tensor gone, -2.00 KiB\n"
        "  Name  Role        Type     Shape      Change\n"
        "  " + "─" * 44 + "\n"
        "  lost  activation  float32  (512,)  -2.00 KiB\n"
        "\n"
        "  2 tensors changed size, 0 B\n"
        "  Name    Role   Type     Shape     Before     After     Change  Born\n"
        "  " + "─" * 69 + "\n"
        "  buffer  other  float32  (512,)  4.00 KiB  2.00 KiB  -2.00 KiB\n"
        "  cache   other  float32  (768,)  1.00 KiB  3.00 KiB  +2.00 KiB  a.py:1\n"
        "\n"
        "  Ledger              Before      After      Change\n"
        "  " + "─" * 49 + "\n"
        "  driver total      1.00 GiB   1.00 GiB         0 B\n"
        "    in use         17.00 KiB  30.00 KiB  +13.00 KiB\n"
        "      other              0 B        0 B         0 B\n"
        "      reserved     17.00 KiB  30.00 KiB  +13.00 KiB\n"
        "        cached           0 B        0 B         0 B\n"
        "        allocated  17.00 KiB  30.00 KiB  +13.00 KiB\n"
        "          named    17.00 KiB  25.00 KiB   +8.00 KiB\n"
        "          unnamed        0 B   5.00 KiB   +5.00 KiB\n"
    )


def test_no_change_says_so() -> None:
    text = text_of(snapshots.changes()["none"])
    assert text.startswith(
        "Changes in memory\n  no tensor appeared, went or changed its size\n\n"
        "cpu  0 B in tensors (1.00 MiB to 1.00 MiB), allocated 0 B, unnamed 0 B\n"
    )


def test_hidden_changes_are_summed() -> None:
    text = text_of(snapshots.many() - snapshots.empty(), top=1)
    assert lines_with(text, "more") == [
        "… 99 more tensors, +4.83 MiB (all: show --top all, or top=None)"
    ]
    text = text_of(snapshots.grown(), devices=("cuda",))
    assert text.endswith("\nNot shown: cpu (+8.00 KiB)\n")


def test_a_device_not_looked_at_is_unknown_and_says_so() -> None:
    text = text_of(snapshots.two_devices() - snapshots.one_tensor(), 100)
    assert "\n  n/a: before: this device was not looked at\n" in text
    assert text.endswith("\nmeta  +40 B in tensors that take no memory\n")


def test_the_record_prints_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for record in (snapshots.two_devices(), snapshots.grown()):
        assert str(record) == text_of(record, 120)


def test_blocks_of_which_as_little_is_known_are_one_row() -> None:
    named = [T("weight", storage_nbytes=1000)]
    blocks = (*(UnnamedBlock(address, 20) for address in range(1, 100)), UnnamedBlock(500, 68))
    made = (
        UnnamedBlock(1000, 4096, what="made by Fill"),
        UnnamedBlock(2000, 4096, what="made by Fill"),
    )
    ledger = replace(
        ledger_of("cpu", allocated=11_240, named=1000, unnamed=10_240),
        blocks=(*made, *blocks),
        block_count=102,
    )
    text = text_of(snapshot_of(named, {"cpu": ledger}), 100)
    # 99 times 20 B and one of 68 B
    assert "              2.00 KiB in 100 blocks  nothing is known of them\n" in text
    assert "              8.00 KiB in 2 blocks  made by Fill\n" in text
    assert text.count("nothing is known") == 1
    verbose = TextRenderer(view=View(verbose=True)).render(snapshot_of(named, {"cpu": ledger}))
    assert verbose.count("nothing is known") + verbose.count(" B  at 0x") >= 100


@pytest.mark.parametrize("limit", range(60, 110, 7))
def test_a_figure_stays_with_its_unit(limit: int) -> None:
    for changed in snapshots.changes().values():
        for line in text_of(changed, limit).splitlines():
            assert not re.match(r"\s*([KMG]i)?B\b", line)
