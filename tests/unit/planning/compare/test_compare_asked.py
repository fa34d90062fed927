"""Options as they are given, and the search for the largest batch, without any process."""

import threading
from unittest import mock

import pytest

import tensorlens
from tensorlens.errors import UsageError
from tensorlens.planning import processes
from tensorlens.planning.compare import options as compare_options
from tensorlens.planning.compare import trials
from tensorlens.planning.trials import (
    Failure,
    FailureKind,
    Job,
    Measurement,
    Program,
    Variant,
    catalogue,
)


def make_step():
    return lambda: None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "mapping of names"),
        ([1], "mapping of names"),
        ({"a": 5}, "option 'a' is a int"),
        ({"": {}}, "the name of an option"),
        ({3: {}}, "the name of an option"),
        ({"a": {"optimiser": "adam"}}, "no setting 'optimiser'; did you mean 'optimizer'?"),
        ({"a": {"optimizer": "adamm"}}, "one of sgd, adam"),
        ({"a": {"accumulate": 1}}, "2 or more"),
        ({"a": {"set_to_none": 1}}, "True or False"),
        ({"a": {"function": 3}}, "function= takes a function"),
        ({"a": {"arguments": 3}}, "arguments= takes a dict"),
        ({"a": {"alloc_conf": "no_such_thing"}}, "no_such_thing"),
    ],
)
def test_options_that_make_no_sense(options, words):
    with pytest.raises(UsageError, match=words):
        tensorlens.compare(make_step, options)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"how": "guessed"}, "measured or estimated"),
        ({"repeats": 0}, "repeats=0: it is a number, at least 1"),
        ({"batch": 0}, "batch=0: it is a number, at least 1"),
        ({"batch": True}, "batch=True"),
        ({"steps": 2.0}, "steps=2.0"),
        ({"warmup": -1}, "warmup=-1: it is a number, at least 0"),
        ({"lowest": 8, "highest": 4}, "highest=4: it is a number, at least 8"),
        ({"repeats": None}, "repeats=None"),
        ({"baseline": "x"}, "none of the options"),
        ({"device": "tpu"}, "cuda and cpu"),
        ({"card": "h100"}, r"^card is for estimates \(--estimated, how=\"estimated\"\)"),
        ({"how": "estimated", "card": "no such card"}, "no such card"),
        ({"capacity": "much"}, "not a size"),
        ({"framework": "jax"}, "there is torch"),
        ({"executor": 3}, "concurrent.futures"),
        ({"device": 0}, "cuda and cpu"),
        ({"arguments": [1]}, "arguments=.*give a dict"),
        ({"timeout": "10"}, "timeout='10': it is a number of seconds"),
    ],
)
def test_arguments_that_make_no_sense(given, words):
    with pytest.raises(UsageError, match=words):
        tensorlens.compare(make_step, {"a": {}}, **given)


def test_script_takes_no_settings(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('nothing is run')")
    refused = r"train.py: built-in settings need a make_step\(\) that returns step\(\)"
    for others in ({"a": {"fused": True}}, {"a": {"fused": True}, "b": {"optimizer": "sgd"}}):
        with pytest.raises(UsageError, match=refused):
            tensorlens.compare(str(script), {"baseline": {}, **others})


def test_unpicklable_program_is_one_line():
    lock = threading.Lock()

    def option(make_step):
        with lock:
            return make_step()

    with pytest.raises(UsageError, match="cannot go to a process of its own") as caught:
        tensorlens.compare(make_step, {"a": option})
    assert "\n" not in str(caught.value)


def test_settings_are_applied_in_the_catalogues_order():
    (option,) = compare_options.checked_options(
        {"a": {"autocast": "bf16", "optimizer": "sgd", "arguments": {"width": 2}}},
        framework="torch",
        arguments={"width": 1, "depth": 3},
        with_data=True,
    )
    assert list(option.variant.settings) == ["optimizer", "autocast"]
    assert option.variant.arguments == {"width": 2, "depth": 3}
    assert option.settings == ("autocast=bf16", "optimizer=sgd", "width=2")


def test_settings_of_the_command_line():
    found = compare_options.parse_option(
        ["fused=true", "optimizer=adam", "accumulate=4", "width=8"], catalogue("torch")
    )
    assert found == {
        "fused": True,
        "optimizer": "adam",
        "accumulate": 4,
        "arguments": {"width": 8},
    }
    with pytest.raises(UsageError, match="NAME=VALUE"):
        compare_options.parse_option(["fused"], catalogue("torch"))


class FakeLauncher:
    """Gives what a program of ``fixed + each * batch`` bytes would."""

    def __init__(self, fixed, each, most=None):
        self.fixed, self.each, self.most, self.tried = fixed, each, most, []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def run(self, job):
        self.tried.append(job.batch)
        peak = self.fixed + self.each * job.batch
        if self.most is not None and job.batch > self.most:
            return Failure(FailureKind.FAILED, "IndexError: there is no such item")
        if peak > job.limit:
            return Failure(FailureKind.OUT_OF_MEMORY, "no room")
        return Measurement("cpu", peak, None, 0, (), None)


def largest(launcher, capacity, **more):
    job = Job("a", Program("p"), Variant({}), "torch", ())
    with mock.patch.object(trials, "Runner", lambda: launcher):
        return trials.largest_measured_batch(job, capacity, **more)


@pytest.mark.parametrize("fixed", [0, 1000, 99_000])
@pytest.mark.parametrize("each", [1, 7, 333])
def test_the_largest_batch_is_the_largest(fixed, each):
    launcher = FakeLauncher(fixed, each)
    found = largest(launcher, 100_000)
    assert found.batch == (100_000 - fixed) // each
    assert {found.batch, found.batch + 1} <= set(launcher.tried)
    assert len(launcher.tried) == len(set(launcher.tried)) < 25
    assert found.beyond == f"{found.batch + 1:,}: out of memory"


def test_batches_of_parts():
    launcher = FakeLauncher(0, 10)
    assert largest(launcher, 999, multiple=4).batch == 96
    assert set(launcher.tried) >= {96, 100}


def test_the_smallest_does_not_fit():
    assert largest(FakeLauncher(500, 1), 400).batch == 0


def test_the_largest_that_is_allowed_fits():
    found = largest(FakeLauncher(0, 1), 1000, highest=50)
    assert (found.batch, found.beyond) == (50, "the largest that was to be tried")


def test_search_ends_at_any_failure():
    found = largest(FakeLauncher(0, 1, most=37), 1000)
    assert found.batch == 37 and "IndexError" in found.beyond
    found = largest(FakeLauncher(0, 1, most=0), 1000)
    assert found.batch is None and "IndexError" in found.missing


@pytest.mark.parametrize(
    ("signal", "batch"), [("SIGKILL", 0), ("SIGABRT", 0), ("SIGSEGV", None), ("", None)]
)
def test_a_signal_at_the_smallest_batch_may_mean_memory(signal, batch):
    class Ended(FakeLauncher):
        def run(self, job):
            return Failure(FailureKind.FAILED, "it is gone", signal=signal)

    found = largest(Ended(0, 1), 1000)
    assert (found.batch, found.beyond + found.missing) == (batch, "1: it is gone")


def test_how_processes_end():
    assert processes.ending(3) == "ended by itself (exit code 3)"
    assert processes.ending(-9) == "was ended by SIGKILL: the system may have run out of memory"
    assert processes.ending(-11) == "was ended by SIGSEGV: a crash"
