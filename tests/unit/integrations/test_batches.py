"""Loops over batches, told by hand: peaks, the batches they were in, growth, and the text."""

import threading
from types import SimpleNamespace

import pytest

from tensorlens.integrations import (
    EVALUATE,
    FIT,
    PREDICT,
    EpochLevel,
    Follower,
    SteadyGrowth,
    Trend,
)
from tensorlens.lines import DeviceLevel


class Script:
    """Stands for a span: the test says what is allocated, and what the peak was since."""

    def __init__(self, *devices: str, precision: str = "exact bytes") -> None:
        self.counters = [
            SimpleNamespace(device=name, source="script", precision=precision, missing={})
            for name in devices or ("cpu",)
        ]
        self.now = [0] * len(self.counters)
        self.high = [0] * len(self.counters)
        self.thread: int | None = None

    def set(self, allocated: int, peak: int = 0, slot: int = 0) -> None:
        self.now[slot] = allocated
        self.high[slot] = max(self.high[slot], peak, allocated)

    def begin(self):
        self.thread = threading.get_ident()
        return self.read()

    def read(self):
        levels = [
            DeviceLevel(counter.device, now, high, -1)
            for counter, now, high in zip(self.counters, self.now, self.high, strict=True)
        ]
        self.high = list(self.now)
        return levels

    def end(self) -> None:
        self.thread = None

    def notes(self):
        return []


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def follower(script: Script) -> Follower:
    return Follower(script)


def test_an_epoch_has_the_peak_and_the_batch_of_it(script: Script, follower: Follower) -> None:
    follower.begin(FIT)
    follower.epoch_begins(4)
    for number, (peak, after) in enumerate([(50, 10), (90, 20), (70, 15)]):
        follower.batch_begins(number)
        script.set(after, peak)
        follower.batch_ends(number)
    epoch = follower.epoch_ends()
    assert epoch is not None
    assert (epoch.number, epoch.batches, epoch.ended) == (4, 3, True)
    assert epoch.devices == {"cpu": EpochLevel(15, 90, (1, 1))}
    report = follower.end(FIT)
    assert report is not None
    assert report.peak("cpu") == (90, epoch)
    assert script.thread is None


def test_a_peak_between_batches_is_said_to_be_there(script: Script, follower: Follower) -> None:
    follower.begin(FIT)
    follower.epoch_begins(0)
    follower.batch_begins(0)
    script.set(5, 20)
    follower.batch_ends(0)
    script.set(6, 300)
    follower.batch_begins(1)
    follower.batch_ends(1)
    epoch = follower.epoch_ends()
    assert epoch is not None
    assert epoch.devices == {"cpu": EpochLevel(6, 300, None)}


def test_the_peak_of_before_the_fit_is_not_its_own(script: Script, follower: Follower) -> None:
    script.set(5, 1000)
    follower.begin(FIT)
    follower.epoch_begins(0)
    script.set(5, 7)
    follower.batch_begins(0)
    follower.batch_ends(0)
    epoch = follower.epoch_ends()
    assert epoch is not None
    assert epoch.devices["cpu"].peak == 7


def test_validation_is_apart_from_training(script: Script, follower: Follower) -> None:
    follower.begin(FIT)
    follower.epoch_begins(0)
    follower.batch_begins(0)
    script.set(10, 30)
    follower.batch_ends(0)
    follower.begin(EVALUATE)
    follower.batch_begins(0)
    script.set(12, 80)
    follower.batch_ends(0)
    assert follower.end(EVALUATE) is None
    script.set(10)
    epoch = follower.epoch_ends()
    assert epoch is not None
    assert epoch.devices == {"cpu": EpochLevel(10, 30, (0, 0))}
    assert epoch.validation == {"cpu": EpochLevel(12, 80, (0, 0))}
    report = follower.end(FIT)
    assert report is not None
    assert "peak 80 B in batch 1 of validation of epoch 1" in str(report)


def test_fit_ended_by_an_exception_is_forgotten(script: Script, follower: Follower) -> None:
    follower.begin(FIT)
    follower.epoch_begins(2)
    follower.batch_begins(0)
    script.set(3, 9)
    follower.batch_ends(0)
    follower.batch_begins(1)
    assert follower.where() == "batch 2 of epoch 3 of fit"
    running = follower.report()
    assert running is not None
    assert [epoch.ended for epoch in running.epochs] == [False]
    assert "the last epoch not ended" in str(running)
    follower.begin(PREDICT)
    assert follower.where() == "batch 1 of predict"
    follower.batch_begins(0)
    script.set(3, 4)
    follower.batch_ends(0)
    report = follower.end(PREDICT)
    assert report is not None
    assert report.peak("cpu") == (4, report.epochs[0])


def test_evaluate_ended_by_an_exception_is_forgotten(script: Script, follower: Follower) -> None:
    follower.begin(EVALUATE)
    follower.batch_begins(0)
    script.set(3, 9)
    follower.begin(EVALUATE)
    follower.batch_begins(0)
    script.set(3, 4)
    follower.batch_ends(0)
    report = follower.end(EVALUATE)
    assert report is not None
    assert report.peak("cpu") == (4, report.epochs[0])
    assert script.thread is None


def test_validation_ended_by_an_exception_is_forgotten(script: Script, follower: Follower) -> None:
    follower.begin(FIT)
    follower.epoch_begins(3)
    follower.begin(EVALUATE)
    follower.batch_begins(0)
    script.set(3, 9)
    for _ in range(2):
        follower.begin(EVALUATE)
        follower.batch_begins(0)
        script.set(3, 4)
        follower.batch_ends(0)
        assert follower.end(EVALUATE) is None
    epoch = follower.epoch_ends()
    assert epoch is not None
    assert epoch.number == 3
    assert epoch.validation == {"cpu": EpochLevel(3, 4, (0, 0))}


def test_batches_of_another_thread_are_left_out(script: Script, follower: Follower) -> None:
    follower.begin(FIT)
    follower.epoch_begins(0)
    thread = threading.Thread(target=lambda: follower.batch_ends(0))
    thread.start()
    thread.join()
    epoch = follower.epoch_ends()
    assert epoch is not None
    assert epoch.batches == 0


def test_a_device_may_come_into_use_within_an_epoch() -> None:
    script = Script("cpu")
    follower = Follower(script)
    follower.begin(FIT)
    follower.epoch_begins(0)
    follower.batch_begins(0)
    script.set(1, 2)
    follower.batch_ends(0)
    cuda = SimpleNamespace(device="cuda:0", source="script", precision="exact", missing={})
    script.counters.append(cuda)
    script.now.append(0)
    script.high.append(0)
    script.set(70, 100, slot=1)
    follower.batch_begins(1)
    follower.batch_ends(1)
    epoch = follower.epoch_ends()
    assert epoch is not None
    assert epoch.devices == {"cpu": EpochLevel(1, 2, (0, 0)), "cuda:0": EpochLevel(70, 100, None)}


def test_unknown_peaks_stay_unknown() -> None:
    script = Script()
    script.read = lambda: [DeviceLevel("cpu", 50, -1, -1)]  # type: ignore[method-assign]
    follower = Follower(script)
    follower.begin(FIT)
    follower.epoch_begins(0)
    follower.batch_ends(0)
    epoch = follower.epoch_ends()
    assert epoch is not None
    assert epoch.devices == {"cpu": EpochLevel(50, -1, None)}
    report = follower.end(FIT)
    assert report is not None
    assert report.peak("cpu") is None
    assert "cpu  peak n/a" in str(report)


@pytest.mark.parametrize("count", [40, 5000])
def test_growth_by_batch_is_exact(count: int) -> None:
    trend = Trend("batch")
    for number in range(count):
        # every third batch holds something until the next
        trend.take([1000 + 400 * number + 5000 * (number % 3 == 0)])
    assert trend.growth(0, least=1) == SteadyGrowth("batch", 400.0, count)


def test_a_sawtooth_and_a_level_do_not_grow() -> None:
    sawtooth, level, late = (Trend("batch") for _ in range(3))
    for number in range(300):
        sawtooth.take([400 * (number % 7)])
        level.take([77])
        late.take([1000 if number > 250 else 10])
    assert [each.growth(0, least=1) for each in (sawtooth, level, late)] == [None] * 3


def test_growth_of_an_inexact_counter_has_to_be_large() -> None:
    trend = Trend("batch")
    for number in range(100):
        trend.take([10 * number])
    assert trend.growth(0, least=1) is not None
    assert trend.growth(0, least=1 << 20) is None


@pytest.mark.parametrize(
    ("levels", "growth"),
    [
        ([0, 100, 130, 160, 190], SteadyGrowth("call", 30.0, 5)),
        ([0, 100, 130, 130, 190], None),
        ([0, 100, 130], None),
    ],
)
def test_growth_by_call(levels: list[int], growth: SteadyGrowth | None) -> None:
    trend = Trend("call")
    for level in levels:
        trend.take([level])
    assert trend.growth(0, least=1) == growth


def test_calls_of_predict_are_compared(script: Script, follower: Follower) -> None:
    report = None
    for call in range(6):
        follower.begin(PREDICT)
        follower.batch_begins(0)
        script.set(100 + 8 * call, 500)
        follower.batch_ends(0)
        report = follower.end(PREDICT)
    assert report is not None
    assert report.growth == {"cpu": (SteadyGrowth("call", 8.0, 6),)}
    assert "grows by 8 B per call, seen over 6 calls" in str(report)


def test_the_text_of_a_fit(script: Script, follower: Follower) -> None:
    follower.begin(FIT)
    for number in range(2):
        follower.epoch_begins(number)
        for batch in range(3):
            follower.batch_begins(batch)
            script.set(2048 + number, 4096 + 1024 * batch)
            follower.batch_ends(batch)
        follower.epoch_ends()
    report = follower.end(FIT)
    assert report is not None
    assert str(report).splitlines() == [
        "Memory of fit: 2 epochs, 6 batches",
        "  cpu  script, exact bytes",
        "",
        "cpu  peak 6.00 KiB (6,144 B) in batch 3 of epoch 1",
        "  Epoch  Batches      Peak  In batch  At the end  Change",
        "  ──────────────────────────────────────────────────────",
        "      1        3  6.00 KiB         3    2.00 KiB",
        "      2        3  6.00 KiB         3    2.00 KiB    +1 B",
    ]


def test_change_from_or_to_an_unknown_level_is_left_out(script: Script) -> None:
    follower = Follower(script)
    follower.begin(FIT)
    for number, level in enumerate([50, -1, 60, 64]):
        follower.epoch_begins(number)
        follower.batch_begins(0)
        script.set(level, 100)
        follower.batch_ends(0)
        follower.epoch_ends()
    assert [line.split() for line in str(follower.end(FIT)).splitlines()[-4:]] == [
        ["1", "1", "100", "B", "1", "50", "B"],
        ["2", "1", "100", "B", "1", "n/a"],
        ["3", "1", "100", "B", "1", "60", "B"],
        ["4", "1", "100", "B", "1", "64", "B", "+4", "B"],
    ]


def test_many_epochs_are_folded(script: Script, follower: Follower) -> None:
    follower.begin(FIT)
    for number in range(100):
        follower.epoch_begins(number)
        follower.batch_begins(0)
        script.set(5, 10)
        follower.batch_ends(0)
        follower.epoch_ends()
    lines = str(follower.end(FIT)).splitlines()
    assert "      … 76 more epochs" in lines
    assert len(lines) == 6 + 24 + 1
    assert lines[-1].split()[0] == "100"
