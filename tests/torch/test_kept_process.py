"""The process of an estimate waits for the next question about the same program."""

import os
import signal
import textwrap

import pytest

import tensorlens
from tensorlens.planning import processes
from tests import warm

PROGRAM = """
    import os, torch
    from pathlib import Path

    def make_step(batch=4):
        with Path(__file__).with_name("pids.txt").open("a") as file:
            print(os.getpid(), file=file)
        layer = torch.nn.Linear(256, 256)
        data = torch.randn(batch, 256)
        return lambda: layer(data).sum().backward()
"""


@pytest.fixture(autouse=True)
def warm_interpreter(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(processes, "interpreter", warm.python)
    yield
    processes.close_kept()


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    return path


def ask(program, **options):
    found = tensorlens.estimate(f"{program}:make_step", device="cpu", steps=1, **options)
    return found.peak_allocated


def pids(program):
    return program.with_name("pids.txt").read_text().split()


def test_the_same_program_again(program):
    first = ask(program)
    assert ask(program) == first
    assert len({*pids(program)}) == 1
    assert not [each for each in pids(program) if int(each) == os.getpid()]


def test_a_program_that_changed(program):
    small = ask(program)
    # of another length: Python takes a file's bytecode for its own by second and length
    program.write_text(program.read_text().replace("256", "1024"))
    # the weights alone: 1024 x 1024 floats for 256 x 256
    assert ask(program) - small >= 4 * (1024 * 1024 - 256 * 256)
    assert len({*pids(program)}) == 2


def test_process_is_replaced_for_another_environment(program, monkeypatch, tmp_path):
    ask(program)
    monkeypatch.setenv("MY_SWITCH", "1")
    ask(program)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    ask(program)
    assert len({*pids(program)}) == 3


def test_a_process_that_ended_meanwhile(program):
    first = ask(program)
    os.kill(int(pids(program)[0]), 9)
    assert ask(program) == first
    assert len({*pids(program)}) == 2


def test_a_program_that_failed_is_not_kept(program):
    ask(program)
    with pytest.raises(processes.ProgramFailed):
        ask(program, arguments={"batch": "many"})
    ask(program)
    first, failed, failed_again, last = pids(program)
    # it may not have borne to begin twice in one process: a fresh one has the last word
    assert first == failed
    assert len({first, failed_again, last}) == 3


def test_a_forked_process_has_its_own(program):
    first = ask(program)
    child = os.fork()
    if not child:
        try:
            os._exit(0 if ask(program) == first else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    # the parent's is still there
    assert ask(program) == first
    one, forked, again = pids(program)
    assert one == again != forked


def test_threads_of_a_program_are_not_awaited(program, monkeypatch):
    monkeypatch.setattr(processes, "_CLEANUP", 0.1)
    waiting = "    import threading\n    threading.Thread(target=threading.Event().wait, args=[20])"
    program.write_text(
        program.read_text().replace("    layer =", f"{waiting}.start()\n    layer =")
    )
    ask(program)
    (kept,) = processes._kept.values()
    processes.close_kept()
    assert kept._process.returncode == -signal.SIGKILL
