"""Frameworks that the program imports while a recording is on."""

import importlib
import sys

import pytest

from tensorlens import record
from tensorlens.errors import UsageError
from tensorlens.frameworks import Adapter, registry
from tensorlens.records import ALLOC, EventLog, Origin


class Recorder:
    """Has seen one block, of so many bytes."""

    def __init__(self, nbytes, moment):
        self.log = EventLog()
        self.log.append(ALLOC, "cpu", nbytes, nbytes, moment)
        self.ended = 0

    def mark(self, name):
        pass

    def read(self, end):
        self.ended += end
        return self.log, Origin(source={"cpu": f"{self.log.size[0]} B"}, started_ns=100)


class Framework(Adapter):
    def __init__(self, name, recorder):
        self.name = name
        self.recorder = recorder

    def record(self, options):
        if isinstance(self.recorder, Exception):
            raise self.recorder
        return {self.name: self.recorder}


@pytest.fixture
def late(monkeypatch, tmp_path):
    """One framework is there; the import of ``latey`` brings the one that the test gives."""
    (tmp_path / "latey.py").write_text("")
    (tmp_path / "latey_adapter.py").write_text("Adapter = None")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    first = Framework("early", Recorder(10, 5))
    monkeypatch.setattr(registry, "_FRAMEWORKS", {"early": "", "latey": "latey_adapter"})
    monkeypatch.setattr(registry, "_loaded", {"early": first})
    monkeypatch.setattr(registry, "_unusable", {})

    def bring(recorder):
        adapter = importlib.import_module("latey_adapter")
        monkeypatch.setattr(adapter, "Adapter", lambda: Framework("latey", recorder))

    yield bring
    sys.modules.pop("latey", None)
    sys.modules.pop("latey_adapter", None)


def test_late_framework_is_recorded(late):
    second = Recorder(20, 3)
    late(second)
    finders = [*sys.meta_path]
    with record() as recording:
        assert [event.nbytes for event in recording.log] == [10]
        importlib.import_module("latey")
        assert [event.nbytes for event in recording.log] == [20, 10]
    assert [event.nbytes for event in recording.log] == [20, 10]
    assert recording.origin.source == {"cpu": "10 B and 20 B"}
    assert recording.origin.notes == () and second.ended == 1
    assert sys.meta_path == finders


def test_an_import_goes_on_when_what_it_brings_cannot_be_recorded(late):
    late(UsageError("nothing counts here"))
    with record() as recording:
        assert importlib.import_module("latey")
    assert [event.nbytes for event in recording.log] == [10]
    assert recording.origin.notes == ("latey is not recorded: nothing counts here",)


def test_framework_after_the_end_is_not_recorded(late):
    second = Recorder(20, 3)
    late(second)
    with record() as recording:
        pass
    importlib.import_module("latey")
    assert [event.nbytes for event in recording.log] == [10] and not second.ended
