import pytest
import rendered_estimates as estimates
from rendered_recordings import HOSTILE
from test_html_renderer import Reader

from tensorlens.render import fragment, html_page


@pytest.mark.parametrize("kind", estimates.ALL)
def test_a_fragment_is_whole_and_offline(kind: str) -> None:
    reader = Reader(fragment(estimates.ALL[kind]()))
    assert not reader.tags & {"script", "link", "img", "iframe", "b"}
    assert not [name for name, _ in reader.attributes if name.startswith("on")]
    assert not [name for name, _ in reader.attributes if name in ("src", "href")]
    assert not reader.unscoped()


@pytest.mark.parametrize("kind", estimates.ALL)
def test_a_page_has_the_estimate_and_its_recording(kind: str) -> None:
    page = html_page(estimates.ALL[kind]())
    assert "<title>tensorlens: memory estimate</title>" in page
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


def test_bars_of_what_is_required_and_what_there_is() -> None:
    text = fragment(estimates.training())
    # 446 of 1024 MiB
    assert "43.6%" in text
    bars = text[text.index("Required and available") :]
    assert bars.index("33.50 MiB") < bars.index("446.00 MiB") < bars.index("1.00 GiB")
    # 446 where there are 400
    assert "89.7%" in fragment(estimates.too_large())


def test_a_notebook_shows_the_fragment() -> None:
    made = estimates.training()
    assert made._repr_html_() == fragment(made)
    assert "train.py:2" in fragment(made)
