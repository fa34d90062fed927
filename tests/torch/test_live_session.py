"""Replies to who watches a job, where its counter does not tell all."""

import contextlib

import torch

from tensorlens.live.protocol import Ask
from tensorlens.live.session import Session


def test_counter_that_cannot_be_had_is_the_answer(monkeypatch):
    monkeypatch.setenv("TENSORLENS_COUNTER", "none")
    with contextlib.closing(Session(None)) as session:
        error = session.reply({"ask": Ask.LEVELS})["error"]
    assert error == "TENSORLENS_COUNTER=none: choose one of native, heap, resident"


def test_lines_are_not_available_where_nobody_notes_them(monkeypatch):
    monkeypatch.setenv("TENSORLENS_COUNTER", "resident")
    with contextlib.closing(Session(None)) as session:
        kept = torch.zeros(100_003)
        lines = session.reply({"ask": Ask.LINES, "sort": "now"})
        assert lines["rows"] == []
        assert lines["notes"][0].startswith("the lines are n/a: the counter of host memory")
        rows = session.reply({"ask": Ask.TENSORS})["rows"]
        assert [row[-1] for row in rows if row[4] == "(100003,)"] == [kept.nbytes]


def test_request_that_is_none_is_refused():
    with contextlib.closing(Session(None)) as session:
        assert "error" in session.reply({})
        assert "error" in session.reply({"ask": "password"})
        assert "error" in session.reply({"ask": Ask.LINES, "sort": ["now"]})
