import io
import re

import pytest
import rendered_reports as reports

from tensorlens.render import TextRenderer
from tensorlens.streams import can_colour, coloured, for_stream

CODE = re.compile(r"\x1b\[[\d;]*m")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.mark.parametrize("kind", reports.KINDS)
def test_without_the_codes_it_is_the_same_text(kind: str) -> None:
    text = TextRenderer(width=100, encoding="utf-8").render(reports.KINDS[kind]())
    shown = coloured(text)
    assert CODE.sub("", shown) == text
    # every code is ended on its line
    for line in shown.splitlines():
        assert len(re.findall(r"\x1b\[0m", line)) * 2 == len(CODE.findall(line))


def test_marks_and_heading_stand_out() -> None:
    shown = coloured(TextRenderer(width=100, encoding="utf-8").render(reports.training()))
    assert shown.startswith("\x1b[1mMemory per line\x1b[0m\n")
    assert "\x1b[1;34m▲ 96.00 MiB\x1b[0m" in shown
    assert "\x1b[1;33m● +30.00 MiB\x1b[0m" in shown


def test_only_a_terminal_has_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_colour(Terminal())
    assert not can_colour(io.StringIO())
    assert not can_colour(None)
    closed = Terminal()
    closed.isatty = lambda: closed.tell() >= 0  # type: ignore[method-assign]
    closed.close()
    assert not can_colour(closed)
    assert for_stream("text\n", io.StringIO()) == "text\n"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_who_wants_none_has_none(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert for_stream("text\n", Terminal()) == "text\n"
