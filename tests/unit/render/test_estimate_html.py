import pytest
import rendered_estimates as estimates
from rendered_recordings import HOSTILE
from test_html_renderer import Reader

from tensorlens.planning.estimate.peak_parts import peak_parts
from tensorlens.planning.estimate.present.card_bar import card_stacks
from tensorlens.planning.estimate.present.verdict import fit_of
from tensorlens.render.html import HtmlRenderer, fragment


def stacks_of(kind: str):
    """Each stack of a bar: the sizes by their labels, and where the capacity ends."""
    made = estimates.ALL[kind]()
    return [
        ({stripe.label: stripe.text for stripe in stack.stripes}, stack.limit)
        for stack in card_stacks(made, peak_parts(made), fit_of(made), "")
    ]


@pytest.mark.parametrize("kind", estimates.ALL)
def test_a_fragment_is_whole_and_offline(kind: str) -> None:
    reader = Reader(fragment(estimates.ALL[kind]()))
    assert not reader.tags & {"script", "link", "img", "iframe", "b"}
    assert not [name for name, _ in reader.attributes if name.startswith("on")]
    assert not [name for name, _ in reader.attributes if name in ("src", "href")]
    assert not reader.unscoped()


@pytest.mark.parametrize("kind", estimates.ALL)
def test_a_page_has_the_estimate_and_its_recording(kind: str) -> None:
    page = HtmlRenderer().render(estimates.ALL[kind]())
    assert "<title>tensorlens: what it will need</title>" in page
    assert page.index("peak allocated") < page.index("Memory over time")
    assert HOSTILE not in page


def test_the_verdict_and_the_figures() -> None:
    text = fragment(estimates.too_large())
    assert '<div class="tl-remark tl-error">does not fit into 400.00 MiB: needs 446.00 MiB' in text
    rows = [[cell.strip() for cell in row] for row in Reader(text).rows]
    assert [
        *("=", "required on card", "446.00 MiB", "467,664,896", "334.00 MiB", "588.00 MiB"),
        "decides whether it fits",
    ] in rows
    assert ["step 2", "33.50 MiB", "40.00 MiB", "25.00 MiB", "40.00 MiB"] in rows
    assert ["cuBLAS workspace", "8.00 MiB", "23.9 %"] in rows
    assert ["cuBLAS workspace", "8.00 MiB", "one handle on this card"] in rows


def test_the_bar_is_the_card() -> None:
    # 33.5 allocated, 2.5 more of the 36 that are enough, 410 outside: 446 of 1024 MiB
    ((stripes, limit),) = stacks_of("training")
    assert [*stripes.values()][-3:] == ["2.50 MiB", "410.00 MiB", "578.00 MiB"]
    assert [*stripes][-3:] == ["unused in segments", "outside of torch", "free"]
    assert limit is None


def test_the_bar_of_what_does_not_fit_shows_where_the_card_ends() -> None:
    ((stripes, limit),) = stacks_of("too large")
    assert "free" not in stripes
    assert limit == (400 / 446, "400.00 MiB")


def test_a_small_needed_part_has_a_bar_of_its_own() -> None:
    # 446 MiB of 79 GiB
    (whole, _), (used, _) = stacks_of("unasked")
    assert [*whole] == ["needed", "free"]
    assert whole["needed"] == "446.00 MiB"
    assert "free" not in used and len(used) == 11


def test_without_a_card_the_bar_is_what_is_used() -> None:
    assert stacks_of("approximate") == [({"activations": "3.00 MiB"}, None)]


def test_a_notebook_shows_the_fragment() -> None:
    made = estimates.training()
    assert made._repr_html_() == fragment(made)
    assert "train.py:2" in fragment(made)
