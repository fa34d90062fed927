"""Counters for Perfetto and Chrome: exact, in order, thinned out, the peak among them."""

import json

import pytest
import rendered_recordings

from tensorlens import Recording
from tensorlens.records import ALLOC, FREE, EventLog, Mark
from tensorlens.render import file_content, printable


def events(recording, kind=None):
    data = json.loads(file_content(recording, "perfetto.json"))
    return [event for event in data["traceEvents"] if kind in (None, event["ph"])]


@pytest.mark.parametrize("kind", rendered_recordings.KINDS)
def test_every_kind_has_its_peaks(kind):
    recording = rendered_recordings.KINDS[kind]()
    for device in recording.devices:
        counters = [
            each for each in events(recording, "C") if each["name"] == f"{printable(device)} bytes"
        ]
        times = [each["ts"] for each in counters]
        assert times == sorted(set(times))
        totals = [sum(each["args"].values()) for each in counters]
        line = recording.timeline(device, 20_000)
        assert totals == list(line.totals)
        peaks = [
            each
            for each in events(recording, "i")
            if each["name"].startswith(f"peak of {printable(device)}")
        ]
        assert [each["args"]["bytes"] for each in peaks] == [max(totals)]
        assert peaks[0]["ts"] == times[totals.index(max(totals))]


def test_events_at_one_time_stay_apart():
    log = EventLog()
    log.append(ALLOC, "cpu", 0, 1000, 5000)
    log.append(ALLOC, "cpu", 1, 2000, 5000)
    log.append(FREE, "cpu", 1, 2000, 5000)
    counters = events(Recording(log), "C")
    totals = [(each["ts"], sum(each["args"].values())) for each in counters]
    assert totals[-3:] == [(5.0, 1000), (5.001, 3000), (5.002, 1000)]


def test_marks_and_what_was_reserved():
    recording = rendered_recordings.two_devices()
    reserved = [each for each in events(recording, "C") if each["name"] == "cuda:0 reserved"]
    assert max(each["args"]["bytes"] for each in reserved) == recording.peak("cuda:0").reserved
    log = EventLog()
    log.append(ALLOC, "cpu", 0, 1, 0)
    log.marks.append(Mark("half", 1, 2500))
    (mark,) = [each for each in events(Recording(log), "i") if each["name"] == "half"]
    assert (mark["ts"], mark["s"]) == (2.5, "g")


def test_many_events_are_thinned_out():
    log = EventLog()
    for number in range(100_000):
        log.append(ALLOC if number % 2 == 0 else FREE, "cpu", 0, 64 + number // 2, number)
    content = file_content(Recording(log), "perfetto.json")
    assert len(content) < 5_000_000
    totals = [
        sum(event["args"].values())
        for event in json.loads(content)["traceEvents"]
        if event["ph"] == "C"
    ]
    assert max(totals) == 64 + 99_998 // 2
