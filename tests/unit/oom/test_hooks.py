"""The hooks of explain_oom(): others' go on, and what was there comes back."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import tensorlens
from tensorlens.recording import annotation, oom

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def untouched(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "excepthook", lambda *given: seen.append(given))
    monkeypatch.setattr(threading, "excepthook", lambda given: seen.append(given))
    monkeypatch.setattr(annotation, "annotate_unhandled", lambda error: seen.append(error))
    before = sys.excepthook, threading.excepthook, [*sys.meta_path], oom._wanted
    yield seen
    assert (sys.excepthook, threading.excepthook, sys.meta_path, oom._wanted) == before


def test_calls_nest_and_each_stops_once(untouched):
    ours = []
    stop = tensorlens.explain_oom()
    ours.append(sys.excepthook)
    stop_too = tensorlens.explain_oom()
    assert sys.excepthook == ours[0]
    stop()
    stop()
    assert sys.excepthook == ours[0]
    stop_too()
    assert sys.excepthook != ours[0]


def test_the_hook_that_was_there_is_called_after(untouched):
    stop = tensorlens.explain_oom()
    error = ValueError()
    sys.excepthook(ValueError, error, None)
    assert untouched == [error, (ValueError, error, None)]
    stop()


def test_a_hook_put_in_later_stays_and_goes_on(untouched):
    before = sys.excepthook
    stop = tensorlens.explain_oom()
    ours = sys.excepthook
    later = []

    def hook(*given):
        later.append(given)
        ours(*given)

    sys.excepthook = hook
    stop()
    assert sys.excepthook is hook
    error = ValueError()
    sys.excepthook(ValueError, error, None)
    # ours only passes on
    assert later == untouched == [(ValueError, error, None)]
    sys.excepthook = before


def test_errors_of_threads(untouched):
    stop = tensorlens.explain_oom()
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    error, arguments = untouched
    assert isinstance(error, ZeroDivisionError) and arguments.exc_value is error
    stop()


def test_a_ctrl_c_ends_the_explanation_and_the_error_is_shown(untouched, monkeypatch):
    def interrupted(error):
        raise KeyboardInterrupt

    monkeypatch.setattr(annotation, "annotate_unhandled", interrupted)
    stop = tensorlens.explain_oom()
    error = ValueError()
    sys.excepthook(ValueError, error, None)
    assert untouched == [(ValueError, error, None)]
    stop()


@pytest.mark.parametrize(
    ("ending", "code", "last"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("raise ValueError('x')", 1, "ValueError: x"),
        ("raise MemoryError", 1, "MemoryError"),
        ("pass", 0, ""),
    ],
)
def test_exit_codes_and_tracebacks_without_any_framework(ending, code, last):
    program = f"import tensorlens; tensorlens.explain_oom()\n{ending}\n"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.returncode == code
    assert done.stderr.strip().rpartition("\n")[2] == last
