"""The bar that long verbs show on a terminal, and the lines elsewhere."""

import io

import pytest
from tqdm import tqdm

from tensorlens.errors import UsageError
from tensorlens.planning import progress
from tensorlens.planning.estimate import largest_that_fits


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def attached(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    found = Terminal()
    monkeypatch.setattr("sys.stderr", found)
    return found


def search() -> None:
    # a byte for each item
    assert largest_that_fits(lambda batch: batch, 5, 1, 5) == (5, 6)


def test_a_search_shows_the_batch_that_it_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = attached(monkeypatch)
    search()
    assert "search batch 1: 0run" in terminal.getvalue()
    assert "search batch 5: " in terminal.getvalue()


class Logger:
    def write(self, text: str) -> None:
        pass


@pytest.mark.parametrize("stream", [None, Logger()])
def test_a_stream_of_any_kind_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, stream: Logger | None
) -> None:
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(progress, "_LINE_INTERVAL", 0)
    search()


def test_no_multiple_within_the_batches() -> None:
    with pytest.raises(UsageError, match="no multiple of 4"):
        largest_that_fits(lambda batch: batch, 5, 1, 2, multiple=4)


def test_a_search_inside_of_another_bar_shows_its_batch_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = attached(monkeypatch)
    with progress.progress("compare", "trial", 2) as done:
        done(0, "adam")
        search()
        assert "compare adam:   0%" in terminal.getvalue()
        assert ", batch 5]" in terminal.getvalue()
    assert "search" not in terminal.getvalue()


def test_quick_runs_show_nothing_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stderr", file := io.StringIO())
    monkeypatch.setattr(tqdm, "monitor", None)
    search()
    assert file.getvalue() == ""
    # nor is there a thread more, which would be in the way of a fork
    assert tqdm.monitor is None


def test_long_runs_write_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", file := io.StringIO())
    seconds = iter([0.0, 29.0, 31.0, 31.0, 45.0, 62.0, 62.0])
    monkeypatch.setattr("time.monotonic", lambda: next(seconds))
    with progress.progress("compare", "trial", 2) as done:
        done(0, "adam")
        with progress.progress("search", "run") as tried:
            tried(0, "batch 1")
            tried(1, "batch 16")
        done(1, "sgd")
    assert file.getvalue() == (
        "tensorlens: compare: trial 1 of 2, adam, batch 1, after 31 s\n"
        "tensorlens: compare: trial 2 of 2, sgd, after 62 s\n"
    )
