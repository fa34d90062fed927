import re

import pytest
import rendered_estimates as estimates
from rendered_estimates import GIB, MIB
from rendered_recordings import HOSTILE
from test_html_renderer import Reader

from tensorlens.planning.estimate.present.needs import judged
from tensorlens.planning.estimate.present.peak_parts import card_bar, peak_parts
from tensorlens.render.html import HtmlRenderer, fragment


def bar_of(kind: str):
    made = estimates.ALL[kind]()
    return card_bar(made, peak_parts(made), judged(made))


@pytest.mark.parametrize("kind", estimates.ALL)
def test_a_fragment_is_whole_and_offline(kind: str) -> None:
    reader = Reader(fragment(estimates.ALL[kind]()))
    assert not reader.tags & {"script", "link", "img", "iframe", "b"}
    assert not [name for name, _ in reader.attributes if name.startswith("on")]
    assert not [name for name, _ in reader.attributes if name in ("src", "href")]
    css = re.sub(r"@media[^{]*\{((?:[^{}]*\{[^{}]*\})*)\s*\}", r"\1", reader.css)
    selectors = re.findall(r"([^{}]+)\{", css)
    assert not [each for each in selectors if ".tensorlens" not in each]


@pytest.mark.parametrize("kind", estimates.ALL)
def test_a_page_has_the_estimate_and_its_recording(kind: str) -> None:
    page = HtmlRenderer().render(estimates.ALL[kind]())
    assert "<title>tensorlens: what it will need</title>" in page
    assert page.index("Memory needed") < page.index("Memory over time")
    assert HOSTILE not in page


def test_the_verdict_and_the_figures() -> None:
    text = fragment(estimates.too_large())
    assert '<div class="tl-remark tl-error">does not fit into 400.00 MiB: needs 446.00 MiB' in text
    rows = [[cell.strip() for cell in row] for row in Reader(text).rows]
    assert [
        *("= required on the card", "446.00 MiB", "334.00 MiB", "588.00 MiB", "467,664,896"),
        "decides whether it fits",
    ] in rows
    assert ["step 2", "33.50 MiB", "40.00 MiB", "25.00 MiB", "40.00 MiB"] in rows
    assert ["cuBLAS workspace", "8.00 MiB", "23.9 %"] in rows
    assert ["cuBLAS workspace", "8.00 MiB", "one handle on this card"] in rows


def test_the_bar_is_the_card() -> None:
    # 33.5 allocated, 6.5 cached, 410 outside: 450 of 1024 MiB
    found = bar_of("training")
    kept = {stripe.label: stripe.nbytes for stripe in found.stripes}
    assert list(kept.values())[-3:] == [13 * MIB // 2, 410 * MIB, 574 * MIB]
    assert [*kept][-3:] == ["cached", "outside of torch", "free"]
    assert sum(kept.values()) == found.whole == GIB
    assert found.limit is None


def test_what_is_cached_goes_back_when_there_is_no_room() -> None:
    # the minimum that fits is 36: 2.5 beside 33.5, and 410 outside
    found = bar_of("too large")
    kept = {stripe.label: stripe.nbytes for stripe in found.stripes}
    assert kept["cached"] == 5 * MIB // 2
    assert "free" not in kept
    assert (found.whole, found.limit) == (446 * MIB, 400 * MIB)


def test_what_is_too_little_to_be_seen_is_drawn_again() -> None:
    # 450 MiB of 79 GiB
    zoomed = bar_of("unasked").zoomed
    assert zoomed is not None
    assert zoomed.whole == 450 * MIB
    assert bar_of("training").zoomed is None


def test_without_a_card_the_bar_is_what_is_used() -> None:
    found = bar_of("approximate")
    assert [(stripe.label, stripe.nbytes) for stripe in found.stripes] == [("activations", 3 * MIB)]
    assert found.whole == 3 * MIB


def test_a_notebook_shows_the_fragment() -> None:
    made = estimates.training()
    assert made._repr_html_() == fragment(made)
    assert "train.py:2" in fragment(made)
