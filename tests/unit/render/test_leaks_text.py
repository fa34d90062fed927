from dataclasses import replace

import pytest
import rendered_leaks as leaks

from tensorlens.leaks import Balance
from tensorlens.render import TextRenderer, width


def text_of(kind: str, columns: int = 80, encoding: str = "utf-8") -> str:
    return TextRenderer(width=columns, encoding=encoding).render(leaks.KINDS[kind]())


@pytest.mark.parametrize("kind", leaks.KINDS)
@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "cp1252"])
def test_no_line_is_wider_than_the_page(kind: str, columns: int, encoding: str) -> None:
    text = text_of(kind, columns, encoding)
    text.encode(encoding)
    if kind != "hostile":
        assert [line for line in text.splitlines() if width(line) > columns] == []
    assert not set(text) & set("\x1b\u202e\r\t")


def test_a_healthy_loop() -> None:
    assert text_of("healthy") == (
        "No leak: nothing stays behind in any of 5 steps\n"
        "  watched    8 steps: 2 of warm-up\n"
        "  allocated  cpu  ▁▂▃▄▅▆▇█  1.00 KiB to 8.00 KiB\n"
    )


def test_a_leak_at_80_columns() -> None:
    assert text_of("leak") == (
        "Leak: 1 tensor and 12.00 KiB stay behind in each step\n"
        "  watched    8 steps: 2 of warm-up\n"
        "  allocated  cpu  ▁▂▃▄▅▆▇█  1.00 KiB to 8.00 KiB\n"
        "\n"
        "1  1 tensor, 12.00 KiB a step\n"
        "   made at    train.py:12 in Trainer.step\n"
        "                loss = criterion(self.net(batch), target)\n"
        "   held by    trainer (global) -> Trainer.history (attribute) -> list[7]\n"
        "                -> grad_fn -> 3 saved activations\n"
        "   and by     log (closure) -> dict['loss']\n"
        "   example    trainer.history[7]: float32 (), 4 B, grad_fn MeanBackward0,\n"
        "                activation on cpu, made 1 step ago,\n"
        "                below it 3 tensors, 12.00 KiB\n"
        "   certain    each of 5 steps left the same number of tensors behind\n"
        "   advice     store loss.item() instead of the tensor, which keeps the autograd\n"
        "              graph of its step\n"
    )


def test_a_path_takes_one_line_where_there_is_room() -> None:
    assert (
        "   held by    trainer (global) -> Trainer.history (attribute) -> list[7] -> grad_fn"
        " -> 3 saved activations\n"
    ) in text_of("leak", 120)


def test_unknown_figures_have_reasons() -> None:
    text = text_of("several")
    assert (
        "2  about 2 tensors, 1.50 KiB a step\n"
        "   made at    a line that is not known\n"
        "   held by    nothing that can be seen from Python\n"
        "   likely     one step in 2 leaves the same behind, 3 times in 6 steps\n"
    ) in text
    assert "   held by    ... -> list[3]\n" in text
    assert "a tensor without a name: float32 (2, 3),\n" in text
    assert "24 B of a storage of 4.00 KiB" in text


def test_one_tensor_that_is_replaced_by_larger_ones() -> None:
    assert "3  one tensor that grows, 20 B a step\n" in text_of("several")


def test_other_growth_shows_reason_and_path_once() -> None:
    text = text_of("several").partition("Other growth\n")[2]
    assert text == (
        "  garbage    1 tensor, 400 B a step, made at train.py:27 in step: garbage that\n"
        "             waited for the collector, a cycle: Node.me -> Node\n"
        "  filling    1 tensor, 28 B a step, made at train.py:30 in step: deque[6] is\n"
        "             filling up, it ends at 100 items\n"
        "             window (global) -> deque[6]\n"
    )


def test_levels_of_devices_that_hold_nothing_or_are_unknown_are_left_out() -> None:
    head = text_of("several").partition("\n\n")[0]
    assert head.splitlines()[2:] == [
        "  allocated  cuda:0  ▁█  1.00 KiB to 4.00 KiB",
        "  note: judged after step 8; the program made 20",
    ]


def test_levels_are_numbers_where_the_encoding_has_no_bars() -> None:
    assert (
        "  allocated  cpu  1.00 KiB, 2.00 KiB, 3.00 KiB, 4.00 KiB, 5.00 KiB, 6.00 KiB,\n"
        "                  7.00 KiB, 8.00 KiB\n"
    ) in text_of("healthy", encoding="ascii")


def test_many_levels_are_thinned_to_fit() -> None:
    levels = {"cpu": tuple(range(1, 100_001))}
    text = TextRenderer(width=80, encoding="utf-8").render(leaks.report(allocated=levels))
    line = text.splitlines()[2]
    assert line.startswith("  allocated  cpu  ▁") and line.endswith("█  1 B to 97.66 KiB")
    assert width(line) <= 80


def test_a_report_prints_itself_and_is_short_as_repr() -> None:
    report = leaks.KINDS["leak"]()
    assert str(report).startswith("Leak: 1 tensor and 12.00 KiB stay behind in each step\n")
    assert repr(report) == (
        "<LeakReport: leak: 1 tensor and 12.00 KiB stay behind in each step; made at train.py:12 "
        "in Trainer.step, held by trainer (global) -> Trainer.history (attribute) -> list[7] -> "
        "grad_fn -> 3 saved activations>"
    )
    healthy = leaks.report()
    assert repr(healthy) == "<LeakReport: no leak: nothing stays behind in any of 5 steps>"
    assert (bool(report), bool(healthy)) == (True, False)


def test_below_and_balance_text() -> None:
    lines = text_of("queue", 100).splitlines()
    assert lines[3] == (
        "  growth     cpu  +5.20 KiB a step: leaks +5.00 KiB, filling +1.00 KiB, freed -819 B"
    )
    assert "1  2 tensors, 5.00 KiB a step: queue that fills" in lines
    first = lines.index(
        "   below it   less than 1 tensor, 512 B a step, activation, made at net.py:1 in forward"
    )
    assert lines[first + 1] == "                x = 1"
    # the eight with the most bytes
    assert lines[first + 16] == "              1.00 KiB a step, made at 2 more lines"


@pytest.mark.parametrize("columns", [80, 100])
def test_names_that_do_not_fit_keep_what_tells_them_apart(columns: int) -> None:
    found = []
    for layer in range(3):
        layer_of = f"DocumentRetrievalModel.transformer_encoder.layers.{layer}"
        name = f"{layer_of}.self_attention.probabilities"
        way = leaks.path("net (global)", f"{name} (attribute)", "list[6]")
        found.append(replace(leaks.LOSSES, path="", paths=(way,), example=None))
    text = TextRenderer(width=columns, encoding="utf-8").render(leaks.report(*found))
    shown = [line.strip() for line in text.splitlines() if "(attribute)" in line]
    assert len({*shown}) == 3
    for layer, line in enumerate(shown):
        assert line.startswith("-> ") and f"{layer}" in line and "probabilities (attribute)" in line


def test_single_growth_is_a_total() -> None:
    once = Balance(11, 196 * leaks.KIB, 0, unknown=196 * leaks.KIB)
    text = TextRenderer(width=80).render(leaks.report(balance={"cpu": once}))
    assert "  growth     cpu  +196.00 KiB over 11 steps, none in tensors that stay\n" in text
    assert "a step" not in text.partition("growth")[2].partition("\n")[0]


def test_memory_that_only_fell_is_no_growth() -> None:
    fell = Balance(47, -4 * leaks.KIB, 0, freed=4 * leaks.KIB)
    assert "growth" not in TextRenderer(width=80).render(leaks.report(balance={"cpu": fell}))


def test_levels_that_print_alike_are_drawn_alike() -> None:
    mib = 1024 * leaks.KIB
    levels = {"cpu": (5 * mib, 5 * mib + 4, 5 * mib + 4, 5 * mib + 8)}
    text = TextRenderer(width=80).render(leaks.report(allocated=levels))
    assert "  allocated  cpu  ▁▁▁▁  5.00 MiB\n" in text
    text = TextRenderer(width=80).render(leaks.report(allocated={"cpu": (5 * mib, 6 * mib)}))
    assert "  allocated  cpu  ▁█  5.00 MiB to 6.00 MiB\n" in text
