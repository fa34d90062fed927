"""``compare()`` on programs whose memory is known; each option in processes of its own."""

import ctypes
import functools
import importlib.util
import math
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import Executor, Future
from pathlib import Path

import compare_programs as programs
import psutil
import pytest
import torch

import tensorlens
from tensorlens.errors import UsageError
from tensorlens.planning import processes
from tensorlens.units import format_bytes
from tests import warm
from tests.under_limit import largest_batch

BATCH = 1024
A = BATCH * programs.WIDTH * 4
"""Bytes of one layer's output."""
LOWEST = 12
"""The smallest batch that is tried under a limit."""
P = programs.PARAMETER_BYTES
N = programs.PARAMETERS

SAVING = {
    "baseline": {},
    "kept": {"set_to_none": False},
    "adam": {"optimizer": "adam"},
    "fused": {"optimizer": "adamw", "fused": True},
    "checkpoint": {"checkpoint": "blocks"},
    "bf16": {"autocast": "bf16"},
}
"""Of which the baseline has plain SGD."""
FEWER = {name: SAVING[name] for name in ("baseline", "checkpoint", "bf16")}
PARTS = {"parts": {"accumulate": 4}}
MODELS = {
    "mlp": (programs.make_step, BATCH, SAVING, 2),
    "cnn": (programs.make_cnn, 16, FEWER, 1),
    "encoder": (programs.make_encoder, 16, FEWER, 1),
}
"""Each with its batch, its options, and the step from which on all are alike."""


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Sums are of one order: trials take the threads of the process that asks."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(before)


@functools.cache
def measured_of(model):
    make_step, batch, saving, steps = MODELS[model]
    options = {**saving, **PARTS} if model == "mlp" else saving
    return tensorlens.compare(make_step, options, batch=batch, repeats=1, warmup=0, steps=steps)


@functools.cache
def predicted_of(model):
    make_step, batch, saving, steps = MODELS[model]
    given = {"how": "estimated", "device": "cpu", "batch": batch, "steps": steps}
    return tensorlens.compare(make_step, saving, **given)


@pytest.fixture
def measured():
    return measured_of("mlp")


@pytest.fixture(autouse=True)
def warm_processes(monkeypatch):
    monkeypatch.setattr(processes, "interpreter", warm.python)


def test_kept_gradients_take_their_bytes(measured):
    assert measured["kept"].peak_allocated - measured["baseline"].peak_allocated == P


def test_the_state_of_adam(measured):
    state = 2 * P + 4 * N
    for name in ("adam", "fused"):
        assert measured["adam"].setup_allocated == measured["baseline"].setup_allocated
        assert measured[name].peak_allocated - measured["baseline"].peak_allocated == state


def test_checkpoint_saving_by_hand(measured):
    # kept are the outputs of all blocks but one, as inputs of the next, and those of one block
    # that are made again
    saved = (N - (programs.BLOCKS - 1) - programs.LAYERS) * A
    assert measured.saved("checkpoint") == pytest.approx(saved, rel=0.05)
    assert f"{programs.BLOCKS} blocks (Sequential)" in measured["checkpoint"].notes[0]


def test_bf16_saving_by_hand(measured):
    # without: N outputs, and the last product beside them; with: N halves, and their last in
    # single precision for the sum, the cast weights, and the cast data
    saved = (N + 1) * A - (N * A / 2 + A) - P / 2 - A / 2
    # a CPU that cannot multiply bf16 copies an operand of backward's first product to single
    # precision, beside N halves and the product's two
    copied = (N + 1) * A - (N * A / 2 + 2 * A / 2 + A) - P / 2
    assert measured.saved("bf16") in (pytest.approx(saved, rel=0.05), pytest.approx(copied, 0.02))


def test_a_batch_in_parts(measured):
    # a quarter of the activations and of the data; but gradients are there from the first part on
    saved = 3 * (N + 2) * A / 4 - P
    assert measured.saved("parts") == pytest.approx(saved, rel=0.05)


def line_of(text):
    source = Path(programs.__file__).read_text().splitlines()
    return next(number for number, line in enumerate(source, 1) if text in line)


def test_measured_peak_names_its_largest_line(measured):
    outcome = measured["baseline"]
    peak, line, tensor = (outcome.at_peak[name] for name in ("peak", "line", "tensor"))
    place = f"compare_programs.py:{line_of('torch.tanh')}"
    assert peak.startswith(f"{format_bytes(outcome.peak_allocated)} in backward") and place in peak
    assert place in line
    # backward has used up the last output
    assert f"x {N - 1}, {format_bytes((N - 1) * A)}" in tensor and place in tensor


STEPS = """
import torch

kept = []
net = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range({steps}):
    scratch = torch.empty(1 << 20)
    del scratch
    optimizer.step()
"""


@pytest.mark.parametrize("steps, is_explained", [(8, True), (3, False)])
def test_a_whole_program_is_explained_by_a_step_more_if_it_makes_one(tmp_path, steps, is_explained):
    script = tmp_path / "train.py"
    script.write_text(STEPS.format(steps=steps))
    found = tensorlens.compare(str(script), {"baseline": {}}, warmup=1, steps=2, repeats=1)
    outcome = found["baseline"]
    assert outcome.ran and len(outcome.seconds) == 1
    # weight and bias, and the scratch
    assert outcome.peak_allocated == (64 * 64 + 64) * 4 + (4 << 20)
    # its first step is known by its end alone
    assert outcome.setup_allocated == 0
    at = outcome.at_peak.get("line", "")
    assert ("train.py:8" in at) == is_explained


def make_stepped():
    net = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    # as many as are wanted
    for _ in range(3):
        optimizer.step()

    def step():
        torch.empty(1 << 20)  # the peak
        optimizer.step()

    return step


def test_a_step_more_is_recorded_after_the_steps_not_after_those_of_the_setup():
    found = tensorlens.compare(make_stepped, {"a": {}}, warmup=1, steps=2, repeats=1)
    peak = next(n for n, line in enumerate(Path(__file__).open(), 1) if "# the peak" in line)
    assert f"test_compare.py:{peak}" in found["a"].at_peak["line"]


def test_losses_of_options_are_compared(measured):
    verdicts = {name: measured.loss_check(name).verdict for name in SAVING}
    assert verdicts == {
        "baseline": "same",
        "kept": "same",
        "adam": "same at first",
        "fused": "same at first",
        "checkpoint": "same",
        "bf16": "differs",
    }


@pytest.mark.parametrize("model", MODELS)
def test_predicted_peaks_are_the_measured_ones(model):
    measured, predicted = measured_of(model), predicted_of(model)
    for name in MODELS[model][2]:
        assert predicted[name].ran, predicted[name].why
        peak = measured[name].peak_allocated
        assert predicted[name].peak_allocated == pytest.approx(peak, rel=0.01)
    assert predicted.pareto == ()
    # an estimate runs two steps, whatever is asked
    assert (predicted.steps, predicted.repeats) == (2, 1)


@pytest.mark.parametrize(
    ("model", "option"),
    [(model, each) for model in MODELS for each in MODELS[model][2] if each != "baseline"],
)
def test_predicted_savings_are_the_measured_ones(model, option):
    saved = measured_of(model).saved(option)
    assert saved
    assert predicted_of(model).saved(option) == pytest.approx(saved, rel=0.05)


def test_option_effects_are_noted_in_estimates():
    for found in (measured_of("mlp"), predicted_of("mlp")):
        assert found["checkpoint"].notes == (f"checkpoint: {programs.BLOCKS} blocks (Sequential)",)


def running(pid):
    """Return a process that has not ended, or None."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process
    except psutil.NoSuchProcess:
        return None


def assert_ended(pids):
    """Wait for processes that have been told to end."""
    psutil.wait_procs(filter(None, map(running, pids)), 60)
    assert not any(map(running, pids))


def crash(make_step):
    ctypes.string_at(0)


def leave(make_step):
    os._exit(7)


def raise_error(make_step):
    raise ValueError("not\ntoday")


class Unprintable(Exception):
    def __str__(self):
        raise TypeError("not for print")


def raise_unprintable(make_step):
    raise Unprintable


def give_generator(make_step):
    step = make_step()

    def yielding():
        yield step()

    return yielding


def hang(make_step):
    place = Path(os.environ["PLACE"])
    place.with_suffix(".tmp").write_text(str(os.getpid()))
    place.with_suffix(".tmp").rename(place)
    time.sleep(600)


def give_nothing(make_step):
    step = make_step()

    def quiet():
        step()

    return quiet


def test_impossible_and_failed_options_are_rows():
    options = {
        "baseline": {},
        "swap": {"offload": True},
        "channels": {"channels_last": True},
        "shards": {"shards": 2},
        "alloc": {"alloc_conf": "expandable_segments:True"},
        "queue": {"prefetch_factor": 1},
        "crash": crash,
        "leave": leave,
        "raise": raise_error,
        "unprintable": raise_unprintable,
        "yields": give_generator,
        "quiet": give_nothing,
    }
    if importlib.util.find_spec("bitsandbytes") is None:
        options["8bit"] = {"optimizer": "adam8bit"}
    found = tensorlens.compare(programs.make_step, options, batch=8, repeats=1, warmup=0, steps=1)
    said = {each.name: (each.status, each.why) for each in found.outcomes}
    assert said["baseline"] == ("ran", "")
    for name, words in {
        "swap": "on the CPU already",
        "channels": "four dimensions",
        "shards": "only be estimated",
        "alloc": "no CUDA device",
        "queue": "no DataLoader is iterated over",
        "8bit": "not installed",
    }.items():
        if name in options and not (name in ("swap", "alloc") and found.device != "cpu"):
            assert said[name][0] == "cannot" and words in said[name][1]
    assert said["crash"] == ("failed", "the process was ended by SIGSEGV: a crash")
    assert said["leave"] == ("failed", "the process ended by itself (exit code 7)")
    assert said["raise"] == ("failed", "ValueError: not today")
    assert said["unprintable"] == ("failed", "Unprintable")
    assert said["yields"][0] == "failed" and "a generator function" in said["yields"][1]
    assert found["quiet"].ran and found.loss_check("quiet") is None
    assert "returns no loss" in found["quiet"].missing["losses"]
    assert str(found)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where a trial writes its number: once it has, its time is up."""
    place = tmp_path / "pid"
    monkeypatch.setenv("PLACE", str(place))

    class OnceItIsThere(threading.Timer):
        def run(self):
            while not place.exists() and not self.finished.wait(0.02):
                pass
            if not self.finished.is_set():
                self.function()

    monkeypatch.setattr(threading, "Timer", OnceItIsThere)
    return place


@pytest.mark.parametrize("how", ["measured", "estimated"])
def test_hanging_trial_is_ended(place, how):
    only = {"hang": hang}
    given = {"how": how, "device": "cpu", "batch": 8, "repeats": 1, "warmup": 0, "steps": 1}
    found = tensorlens.compare(programs.make_step, only, timeout=7, **given)
    assert (found["hang"].status, found["hang"].why) == ("failed", "not done after 7 s")
    assert_ended([int(place.read_text())])


def test_a_trial_that_is_not_known_yet_when_its_time_is_up_is_ended(place, tmp_path, monkeypatch):
    late = tmp_path / "late.py"
    late.write_text(
        textwrap.dedent("""
        import os, sys, time

        begin_group = os.setpgid

        def late(*given):
            begin_group(*given)
            parent = os.getppid()
            place = os.environ["PLACE"]
            with open(place + ".tmp", "w") as file:
                file.write(str(os.getpid()))
            os.rename(place + ".tmp", place)
            while os.getppid() == parent:
                time.sleep(0.01)

        os.setpgid = late
        _, _, code, *sys.argv[1:] = sys.argv
        exec(code)
        """)
    )
    monkeypatch.setattr(processes, "interpreter", lambda: (*warm.python(), str(late)))
    found = tensorlens.compare(
        programs.make_step, {"a": {}}, batch=8, repeats=1, warmup=0, steps=1, timeout=7
    )
    assert (found["a"].status, found["a"].why) == ("failed", "not done after 7 s")
    assert_ended([int(place.read_text())])


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA is as Linux counts it")
def test_the_largest_batch_under_setrlimit_is_the_largest():
    # 16 of 4 MiB, less what the process needs besides
    assert 13 <= largest_batch(programs.make_large, "torch", LOWEST) <= 16


def test_the_largest_batch_under_a_simulated_capacity_is_the_largest(monkeypatch):
    monkeypatch.setattr(processes, "interpreter", lambda: warm.python(device=True))

    def make_on_card(batch):
        return programs.make_large(batch)

    capacity = 1 << 30
    options = {"a": {}}
    found = tensorlens.compare(
        make_on_card, options, how="estimated", card="h100", capacity=capacity, highest=1000
    )
    batch = found["a"].largest_batch
    assert 0 < batch < 1000

    def needed(size):
        made = tensorlens.estimate(make_on_card, card="h100", arguments={"batch": size})
        return made.needed.point

    assert needed(batch) <= capacity < needed(batch + 1)


class Elsewhere(Executor):
    """Stands for another machine: what goes there and comes back is pickled."""

    def submit(self, function, /, *args):
        function, args = pickle.loads(pickle.dumps((function, args)))
        future = Future()
        future.set_result(pickle.loads(pickle.dumps(function(*args))))
        return future


def test_compare_with_an_executor():
    found = tensorlens.compare(
        "compare_programs:make_step",
        {"baseline": {}, "adam": {"optimizer": "adam"}},
        batch=BATCH,
        repeats=1,
        executor=Elsewhere(),
    )
    assert found["adam"].peak_allocated - found["baseline"].peak_allocated == 2 * P + 4 * N
    assert any("executor" in note for note in found.notes)


def test_ctrl_c_leaves_no_process(tmp_path):
    script = tmp_path / "waits.py"
    script.write_text(
        textwrap.dedent("""
        import os, pathlib, subprocess, sys, time
        import tensorlens
        from tensorlens.planning import processes

        def make_step():
            other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            place = pathlib.Path(os.environ["PLACE"])
            place.with_suffix(".tmp").write_text(f"{os.getpid()} {os.getppid()} {other.pid}")
            place.with_suffix(".tmp").rename(place)
            time.sleep(600)

        if __name__ == "__main__":
            processes.interpreter = lambda: sys.argv[1:]
            tensorlens.compare(make_step, {"a": {}})
        """)
    )
    place = tmp_path / "pids"
    root = str(Path(tensorlens.__file__).parents[1])
    environment = {**os.environ, "PLACE": str(place), "PYTHONPATH": root}
    with subprocess.Popen(
        [sys.executable, str(script), *processes.interpreter()],
        env=environment,
        stderr=subprocess.DEVNULL,
    ) as process:
        for _ in range(1200):
            if place.exists():
                break
            time.sleep(0.1)
        pids = [int(each) for each in place.read_text().split()]
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert_ended(pids)


def make_with_closure(batch=8):
    net = torch.nn.Linear(64, 64, bias=False)
    # 1.001 is 1 in bfloat16, whose steps are 1/128 there
    torch.nn.init.constant_(net.weight, 1.001)
    optimizer = torch.optim.SGD(net.parameters())
    x = torch.ones(batch, 64)

    def step():
        def closure():
            optimizer.zero_grad()
            loss = net(x).mean()
            loss.backward()
            return loss

        return optimizer.step(closure)

    return step


def test_closures_of_optimizers_run_under_the_option():
    found = tensorlens.compare(
        make_with_closure,
        {"plain": {}, "bf16": {"autocast": "bf16"}, "parts": {"accumulate": 2}},
        batch=8,
        steps=1,
        repeats=1,
        warmup=0,
    )
    assert found["bf16"].losses == (64.0,)
    assert found["plain"].losses[0] == pytest.approx(64.064, abs=1e-3)
    assert found["parts"].status == "cannot"
    assert "closure" in found["parts"].why


def test_a_batch_that_no_multiple_allows_is_no_largest_batch():
    found = tensorlens.compare(
        programs.make_step,
        {"parts": {"accumulate": 4}},
        how="estimated",
        batch=4,
        capacity="4 GiB",
        lowest=1,
        highest=2,
    )
    assert found["parts"].largest_batch is None


def test_a_timeout_is_a_number_of_seconds():
    for timeout in (True, "1", 0, math.nan):
        with pytest.raises(UsageError, match="timeout="):
            tensorlens.compare(programs.make_step, {"a": {}}, timeout=timeout)
