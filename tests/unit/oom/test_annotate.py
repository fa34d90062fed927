"""Which errors are explained, once, and at which cost to a program that handles them."""

import pytest
from snapshot_builder import T, snapshot_of

from tensorlens.frameworks import TORCH, Adapter, Request, registry
from tensorlens.recording import annotation as oom
from tensorlens.recording import oom as failures


class Failed(RuntimeError):
    """A failed allocation of 4 KiB, of a framework that is not there."""


class Framework(Adapter):
    name = "made up"
    words = TORCH

    def failed_request(self, error):
        return Request("cpu", 4096, str(error)) if isinstance(error, Failed) else None


class Reporter:
    asked = 0
    problem: BaseException | None = None

    def snapshot(self):
        type(self).asked += 1
        if self.problem is not None:
            raise self.problem
        return snapshot_of([T("train(): x (kept by a traceback)", (1024,))])


@pytest.fixture(autouse=True)
def reporter(monkeypatch):
    monkeypatch.setattr(registry, "_FRAMEWORKS", {"made up": ""})
    monkeypatch.setattr(registry, "_loaded", {"made up": Framework()})
    monkeypatch.setattr(oom, "MemReporter", Reporter)
    monkeypatch.setattr(oom, "_explanations", 0)
    monkeypatch.setattr(Reporter, "asked", 0)
    monkeypatch.setattr(Reporter, "problem", None)
    return Reporter


def notes(error):
    return getattr(error, "__notes__", [])


def test_a_failed_allocation_gets_one_note(reporter):
    error = Failed("no room")
    oom.annotate(error)
    (note,) = notes(error)
    lines = note.splitlines()
    assert lines[:3] == [
        "",
        "tensorlens: out of memory: Tried to allocate 4.00 KiB (4,096 B) on cpu",
        "  by         a line that is not known",
    ]
    assert "Resident on cpu: 4.00 KiB in 1 tensor, all of 4.00 KiB allocated" in lines
    # the error is on its way: it goes without saying
    assert "train(): x  " in note and "kept by a traceback" not in note
    oom.annotate(error)
    oom.annotate_unhandled(error)
    assert len(notes(error)) == 1 and reporter.asked == 1


@pytest.mark.parametrize(
    "error", [RuntimeError("x"), ValueError(), KeyboardInterrupt(), SystemExit(3), RecursionError()]
)
def test_other_errors_are_left_alone(error, reporter):
    oom.annotate(error)
    oom.annotate_unhandled(error)
    failures.explain(error)
    assert not notes(error) and reporter.asked == 0


def chained(way):
    failed = Failed("no room")
    outer = ValueError("outer")
    if way == "cause":
        outer.__cause__ = failed
    elif way == "context":
        outer.__context__ = failed
    elif way == "hidden":
        outer.__context__ = failed
        outer.__suppress_context__ = True
    elif way == "group":
        outer = ExceptionGroup("several", [ValueError(), ExceptionGroup("more", [failed])])
    return outer, failed


@pytest.mark.parametrize(
    ("way", "region", "unhandled"),
    [
        ("cause", 1, 1),
        ("group", 1, 1),
        # it may have been handled long ago; the traceback shows it all the same
        ("context", 0, 1),
        ("hidden", 0, 0),
    ],
)
def test_cause_of_an_error_is_annotated(way, region, unhandled):
    outer, failed = chained(way)
    failures.explain(outer)
    assert len(notes(failed)) == region
    outer, failed = chained(way)
    oom.annotate_unhandled(outer)
    assert len(notes(failed)) == unhandled and not notes(outer)


def test_handled_error_is_not_resident_at_the_failure(reporter):
    first, second = Failed("first"), Failed("second")
    outer = ValueError("outer")
    second.__context__, outer.__cause__ = first, second
    oom.annotate_unhandled(outer)
    ((of_first,), (of_second,)) = notes(first), notes(second)
    assert "Resident on cpu now, after the error was handled: 4.00 KiB in 1 tensor" in of_second
    # what is resident now is told once
    assert of_first.splitlines()[1:] == [
        "tensorlens: out of memory: Tried to allocate 4.00 KiB (4,096 B) on cpu",
        "  by         a line that is not known",
    ]
    assert reporter.asked == 1


def test_earlier_error_shows_its_request_alone(reporter):
    first, second = Failed("first"), Failed("second")
    second.__context__ = first
    oom.annotate_unhandled(second)
    assert "\nResident on cpu: 4.00 KiB in 1 tensor" in notes(second)[0]
    assert "Resident" not in notes(first)[0] and reporter.asked == 1


def test_errors_in_a_circle():
    one, other = Failed(), Failed()
    one.__cause__, other.__cause__ = other, one
    oom.annotate_unhandled(one)
    assert len(notes(one)) == len(notes(other)) == 1


def test_a_program_that_tries_again_and_again_is_not_slowed(reporter):
    for _ in range(4):
        failures.explain(Failed())
    assert reporter.asked == 3
    last = Failed()
    failures.explain(last)
    assert not notes(last)
    oom.annotate_unhandled(last)
    assert len(notes(last)) == 1


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (MemoryError(), "too little is left to look at what is resident"),
        (KeyError("x"), "could not look at what is resident: KeyError: 'x'"),
    ],
)
def test_a_look_that_fails_leaves_one_line(reporter, problem, reason):
    reporter.problem = problem
    error = Failed()
    oom.annotate(error)
    assert notes(error) == [
        f"\ntensorlens: out of memory: {reason}; 4,096 B asked for by a line that is not known"
    ]


def test_a_ctrl_c_during_the_look_is_the_programs(reporter):
    reporter.problem = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        failures.explain(Failed())


def test_an_error_that_takes_no_notes(reporter):
    class Stubborn(Failed):
        def add_note(self, note):
            raise TypeError

        def __str__(self):
            raise ValueError

    failures.explain(Stubborn())
    broken = Failed()
    broken.__notes__ = "none"
    failures.explain(broken)
    assert broken.__notes__ == "none"
