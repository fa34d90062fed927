import re

import pytest
import rendered_leaks as leaks
from test_html_renderer import Reader

from tensorlens.render import fragment, html_page


@pytest.mark.parametrize("kind", leaks.KINDS)
def test_a_fragment_is_whole_and_offline(kind: str) -> None:
    reader = Reader(fragment(leaks.KINDS[kind]()))
    assert not reader.tags & {"script", "link", "img", "iframe", "b"}
    assert not [name for name, _ in reader.attributes if name.startswith("on")]
    assert not [name for name, _ in reader.attributes if name in ("src", "href")]
    assert not reader.unscoped()


@pytest.mark.parametrize("kind", leaks.KINDS)
def test_a_page_is_whole(kind: str) -> None:
    page = html_page(leaks.KINDS[kind]())
    assert "<title>tensorlens: memory leaks</title>" in page
    assert "prefers-color-scheme: dark" in page


def test_a_leak_has_its_facts_in_rows() -> None:
    rows = [[" ".join(cell.split()) for cell in row] for row in Reader(fragment_of("leak")).rows]
    assert rows == [
        ["watched", "8 steps: 2 of warm-up"],
        ["allocated", "cpu 1.00 KiB to 8.00 KiB"],
        ["made at", "train.py:12 in Trainer.step loss = criterion(self.net(batch), target)"],
        [
            "held by",
            "trainer (global) -> Trainer.history (attribute) -> list[7] -> grad_fn"
            " -> 3 saved activations",
        ],
        ["and by", "log (closure) -> dict['loss']"],
        [
            "example",
            "trainer.history[7]: float32 (), 4 B, grad_fn MeanBackward0, activation on cpu,"
            " made 1 step ago, below it 3 tensors, 12.00 KiB",
        ],
        ["certain", "each of 5 steps left the same number of tensors behind"],
        [
            "advice",
            "store loss.item() instead of the tensor, which keeps the autograd graph of its step",
        ],
    ]


def test_other_growth_in_html() -> None:
    text = fragment_of("several")
    assert "Other growth" in text
    assert "garbage that waited for the collector" in text
    assert "<span>window (global)</span> <span>-&gt; deque[6]</span>" in text
    assert text.count("Node.me -&gt; Node") == 1


def test_the_levels_are_a_line_from_the_lowest_to_the_highest() -> None:
    # 8 levels across 240 points: 34.3 apart; from 26 (2 above the lower edge) up to 2
    text = fragment_of("healthy")
    (points,) = re.findall(r'points="([^"]*)"', text)
    assert points.split()[0] == "0.0,26.0"
    assert points.split()[1] == "34.3,22.6"
    assert points.split()[-1] == "240.0,2.0"
    assert 'aria-label="allocated: 1.00 KiB to 8.00 KiB"' in text


def fragment_of(kind: str) -> str:
    return leaks.KINDS[kind]()._repr_html_()


def test_below_and_balance_are_html_rows() -> None:
    html = fragment_of("queue")
    parts = "+5.20 KiB a step: leaks +5.00 KiB, filling +1.00 KiB, freed -819 B"
    assert f'<span class="tl-device">cpu</span> {parts}' in html
    assert html.count(">below it<") == 1
    # the first of nine has the label
    assert html.count('<td class="tl-text tl-soft"></td>') == 8
