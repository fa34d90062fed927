"""Replies to who watches a job, where its counter does not tell all."""

import contextlib
import threading

import torch

from tensorlens.interpreter import start_thread
from tensorlens.live import Ask, Session, StepCounter


def test_counter_that_cannot_be_had_is_the_answer(monkeypatch):
    monkeypatch.setenv("TENSORLENS_COUNTER", "none")
    with contextlib.closing(Session(StepCounter())) as session:
        error = session.reply({"ask": Ask.LOOK, "census": False})["error"]
    assert error == "TENSORLENS_COUNTER=none: choose one of native, heap, resident"


def test_lines_are_not_available_where_nobody_notes_them(monkeypatch):
    monkeypatch.setenv("TENSORLENS_COUNTER", "resident")
    with contextlib.closing(Session(StepCounter())) as session:
        kept = torch.zeros(100_003)
        found = session.reply({"ask": Ask.LOOK, "census": True})
        assert not found["lines"]["rows"]
        assert found["lines"]["notes"][0].startswith(
            "the lines are n/a: the counter of host memory"
        )
        rows = found["tensors"]["rows"]
        assert [row["nbytes"] for row in rows if row["shape"] == "(100003,)"] == [kept.nbytes]


def test_unknown_request_is_refused():
    with contextlib.closing(Session(StepCounter())) as session:
        assert "error" in session.reply({})
        assert "error" in session.reply({"ask": "password"})
        assert "error" in session.reply({"ask": Ask.LOOK})


def test_names_in_the_middle_of_a_librarys_call_are_the_programs_own():
    names, is_done = {}, threading.Event()

    class Watched(torch.nn.Module):
        def forward(self, x):
            del x
            start_thread(look)
            is_done.wait(60)

    def look():
        with contextlib.closing(Session(StepCounter())) as session:
            rows = session.reply({"ask": Ask.LOOK, "census": True})["tensors"]["rows"]
        names.update({row["shape"]: row["name"] for row in rows})
        is_done.set()

    with torch.no_grad():
        torch.nn.Sequential(torch.nn.Linear(3, 1_003), Watched())(torch.zeros(7, 3))
    # Sequential.forward() and Module._call_impl() have variables for it
    assert names["(7, 1003)"] == ""
