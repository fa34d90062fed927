import re
from html.parser import HTMLParser

import pytest
import rendered_reports as reports
from rendered_reports import MIB, moved, ran

from tensorlens import LineReport
from tensorlens.render import fragment, html_page

_VOID = {"wbr", "meta", "br"}
_COMMA = re.compile(r",(?![^(]*\))")


class Reader(HTMLParser):
    """Checks that tags nest, and collects the cells of the tables and the styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.rows: list[list[str]] = []
        self.css = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in _VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data
        elif "style" in self.open:
            self.css += data

    def selectors(self) -> list[str]:
        """Return the selectors of the styles, those inside of at-rules as well."""
        css, count = self.css, 1
        while count:
            css, count = re.subn(r"@[a-z]+ [^{]*\{((?:[^{}]*\{[^{}]*\})*)\s*\}", r"\1", css)
        # a comma inside of :is(td, th) parts no selectors
        return [part for rule in re.findall(r"([^{}]+)\{", css) for part in _COMMA.split(rule)]

    def unscoped(self) -> list[str]:
        """Return the selectors that would style the page around a fragment."""
        return [each for each in self.selectors() if ".tensorlens" not in each]


@pytest.mark.parametrize("kind", reports.KINDS)
def test_html_is_whole_and_offline(kind: str) -> None:
    for text in (fragment(reports.KINDS[kind]()), html_page(reports.KINDS[kind]())):
        reader = Reader(text)
        assert not reader.tags & {"script", "link", "img", "iframe", "b"}
        assert not [name for name, _ in reader.attributes if name.startswith("on")]
        assert not [name for name, _ in reader.attributes if name in ("src", "href")]
        assert "url(" not in reader.css
        assert "@import" not in reader.css


@pytest.mark.parametrize("kind", reports.KINDS)
def test_every_row_of_a_table_has_every_column(kind: str) -> None:
    reader = Reader(fragment(reports.KINDS[kind]()))
    heads = [row for row in reader.rows if row[0] == "Line"]
    assert len(heads) == sum(1 for f in reports.KINDS[kind]().functions if f.calls)
    for row in reader.rows[reader.rows.index(heads[0]) if heads else 0 :]:
        assert len(row) == len(heads[0]) or "lines not run" in row[-1]


def test_html_cells() -> None:
    assert Reader(fragment(reports.training())).rows[2:] == [
        [
            *("Line", "Hits", "Time", "Allocated", "Peak", "Reserved"),
            *("Net sum", "Net max", "Net first", "Source"),
        ],
        ["20", *[""] * 8, "def forward(self, x):"],
        ["21", *[""] * 8, "    # features"],
        [
            *("22", "4", "1.00 ms", "64.00 MiB", "64.00 MiB", "0 B", "0 B", "0 B", "0 B"),
            "    for block in self.blocks:",
        ],
        [
            *("23", "3", "4.50 ms", "94.00 MiB", "▲96.00 MiB", "500.00 MiB"),
            *("●+30.00 MiB", "+20.00 MiB", "+6.00 MiB", "        x = block(x)"),
        ],
        [
            *("24", "1", "1.00 ms", "80.00 MiB", "95.00 MiB", "0 B"),
            *("-14.00 MiB", "-14.00 MiB", "-14.00 MiB", "    x = x.mean((2, 3))"),
        ],
        ["25", *[""] * 9],
        [
            *("26", "1", "1.00 ms", "80.00 MiB", "80.00 MiB", "0 B", "+512 B", "+512 B", "+512 B"),
            "    return self.head(x)",
        ],
    ]


def test_html_bars() -> None:
    # highest peak 8 MiB; nets from -2 to +6 MiB, so the axis stands at a quarter
    lines = (
        ran(1, "a", {"cpu": moved(0, 6 * MIB, peak=8 * MIB)}),
        ran(2, "b", {"cpu": moved(6 * MIB, 4 * MIB)}),
        ran(3, "c", {"cpu": moved(4 * MIB, 4 * MIB)}),
    )
    text = fragment(reports.report(reports.function(lines)))
    bars = re.findall(r'style="--tl-from: ([\d.]+%); --tl-to: ([\d.]+%)"', text)
    assert bars[::2] == [("0.0%", "100.0%"), ("0.0%", "75.0%"), ("0.0%", "50.0%")]
    assert bars[1::2] == [("25.0%", "100.0%"), ("0.0%", "25.0%"), ("25.0%", "25.0%")]


def test_hostile_text_is_escaped() -> None:
    text = html_page(reports.hostile())
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "\x1b" not in text
    reader = Reader(text)
    assert [row[-1] for row in reader.rows[1:3]] == [
        "def f(self):",
        "    s = '<script>alert(1)</script>' & \"q\"",
    ]
    text.replace("\ufffd", "").encode("utf-8")


def test_every_style_is_scoped() -> None:
    reader = Reader(fragment(reports.one_line()))
    assert len(reader.selectors()) > 20
    assert not reader.unscoped()


def test_light_and_dark() -> None:
    css = Reader(fragment(reports.one_line())).css
    for theme in (
        "prefers-color-scheme: dark",
        'data-jp-theme-light="false"',
        'data-jp-theme-light="true"',
        "var(--jp-",
    ):
        assert theme in css


def test_folded_lines_are_there_to_open() -> None:
    text = fragment(reports.thousand_lines())
    assert text.count("… 97 lines not run") == 10
    assert "# line 50<" in text


def test_html_remarks() -> None:
    text = fragment(reports.raised())
    assert "✗ line 2 raised RuntimeError: out of memory: tried to allocate 10 PB" in text
    text = fragment(reports.eight_devices())
    assert "cuda:7: unchanged at 512 B (2.00 MiB reserved)" in text
    text = fragment(reports.unknown_figures())
    assert "n/a: peak, reserved of mps: Metal keeps no peak" in text
    text = fragment(reports.never_called())
    assert "never called" in text
    assert "<table" not in text


def test_html_page() -> None:
    report = LineReport((), (reports.CPU,), "estimated", "rank 3", ("a note",))
    text = html_page(report)
    assert text.startswith("<!doctype html>\n<html")
    assert "Memory per line (estimated), rank 3</h1>" in text
    assert "note: a note" in text
    assert "no function was profiled" in text
    assert Reader(fragment(report)).css == Reader(text).css[-len(Reader(fragment(report)).css) :]
