"""The table by module: when there is one, and which layers are one row."""

import re

import pytest

from tensorlens import Recording
from tensorlens.recording import module_rows
from tensorlens.records import ALLOC, Context, EventLog, Frame, SourceLine
from tensorlens.render import TextRenderer

ONE_LINE = {SourceLine("train.py", 9, "step"): 100}
CALL = Frame("/site-packages/torch/nn/modules/module.py", 1800, "_call_impl", False)
ENGINE = Frame("/site-packages/torch/autograd/graph.py", 800, "_engine_run_backward", False)


def rows(by_module, limit=None):
    found, _ = module_rows(ONE_LINE, by_module, limit)
    return [(row.path, row.count, row.nbytes) for row in found]


def test_equal_layers_are_one_row():
    by_module = {f"net.h.{n}.{name}": 10 + n for n in range(12) for name in ("mlp.fc", "attn")}
    # 12 of 10 each, and 0 + 1 + ... + 11
    assert rows(by_module) == [("net.h[0-11].attn", 12, 186), ("net.h[0-11].mlp.fc", 12, 186)]


def test_a_layer_itself_goes_with_its_kind():
    by_module = {"net.h.0": 1, "net.h.1": 2, "net.h.0.fc": 5, "net.h.1.fc": 5, None: 4}
    assert rows(by_module) == [
        ("net.h[0,1].fc", 2, 10),
        ("(no module known)", 1, 4),
        ("net.h[0,1]", 2, 3),
    ]


def test_plain_layers_of_a_sequence_are_different_things():
    assert rows({"net.0": 3, "net.2": 2, "net.4": 1}) == [
        ("net.0", 1, 3),
        ("net.2", 1, 2),
        ("net.4", 1, 1),
    ]


def test_numbers_in_two_places():
    by_module = {f"net.h.{n}.experts.{m}.fc": 1 for n in range(2) for m in range(3)}
    assert rows(by_module) == [("net.h[0,1].experts[0-2].fc", 6, 6)]
    by_module = {f"net.h.{n}.fc": 1 for n in (0, 1, 3, 5, 9)}
    assert rows(by_module) == [("net.h[0...9].fc", 5, 5)]
    assert rows({"net.h.3.fc": 2, "net.out": 1}) == [("net.h.3.fc", 1, 2), ("net.out", 1, 1)]


@pytest.mark.parametrize("limit", [0, 1, 2, 3, None])
def test_shown_and_hidden_add_up(limit):
    by_module = {"a": 5, "b.0.c": 3, "b.1.c": 3, None: 2}
    shown, hidden = module_rows(ONE_LINE, by_module, limit)
    rest = hidden.nbytes if hidden else 0
    assert sum(row.nbytes for row in shown) + rest == 13
    assert sum(row.count for row in shown) + (hidden.count if hidden else 0) == 4


def test_lines_that_tell_enough_have_no_table_beside_them():
    modules = {"a": 60, "b": 40}
    lines = [SourceLine("train.py", number, "step") for number in range(4)]
    assert module_rows({lines[0]: 50, lines[1]: 30, lines[2]: 20}, modules, 10)[0]
    assert not module_rows({lines[0]: 49, lines[1]: 31, lines[2]: 20}, modules, 10)[0]
    # what no line is known of does not count
    assert module_rows({lines[0]: 10, None: 90}, modules, 10)[0]
    assert not module_rows(ONE_LINE, {"a": 100, None: 7}, 10)[0]


def test_modules_at_the_peak_and_in_backward():
    log = EventLog()
    call = log.stacks.push(-1, Frame("train.py", 9, "step"))
    engine = log.stacks.push(log.stacks.push(-1, Frame("train.py", 10, "step")), ENGINE)
    layers = [log.stacks.push(call, CALL, f"net.h.{n}.fc") for n in range(2)]
    out = log.stacks.push(call, CALL, "net.out")
    for at, stack in enumerate((*layers, out)):
        log.append(ALLOC, "cpu", 1 + at, 100, at, stack, Context(op="aten::mm", grad=True))
    for at, stack in enumerate((*layers, out), 3):
        node = Context(op="aten::mm", node="MmBackward0", forward=stack)
        log.append(ALLOC, "cpu", 1 + at, 10, at, engine, node)
    text = TextRenderer(width=80, encoding="utf-8").render(Recording(log))
    assert (
        "   Size   Share  Module\n"
        "  ────────────────────────────────\n"
        "  220 B  66.7 %  net.h[0,1].fc x 2\n"
        "  110 B  33.3 %  net.out\n"
    ) in text
    assert text.endswith(
        "  Size   Share  Module\n"
        "  ───────────────────────────────\n"
        "  20 B  66.7 %  net.h[0,1].fc x 2\n"
        "  10 B  33.3 %  net.out\n"
    )


def test_the_page_has_the_same_tables():
    log = EventLog()
    call = log.stacks.push(-1, Frame("train.py", 9, "step"))
    engine = log.stacks.push(log.stacks.push(-1, Frame("train.py", 10, "step")), ENGINE)
    hostile = "<b>net</b>"
    for n in range(12):
        stack = log.stacks.push(call, CALL, f"{hostile}.{'x' * n}out")
        log.append(ALLOC, "cpu", 1 + n, 100, n, stack, Context(op="aten::mm", grad=True))
    node = Context(node="MmBackward0", forward=stack)
    log.append(ALLOC, "cpu", 100, 10, 12, engine, node)
    for page in (Recording(log).to_html(), Recording(log)._repr_html_()):
        # of backward one module is known: its line says as much
        (table,) = re.split(">By module(?:, at the instant shown first)?<", page)[1:]
        table = table.partition("</div>\n<div")[0]
        assert table.replace("<wbr>", "").count("&lt;b&gt;net&lt;/b&gt;.") == 10
        assert "<b>" not in page
        # 12 modules of 100 B, of which the last one has 10 B more
        assert "… 2 more modules, 200 B" in page
