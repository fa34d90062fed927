"""``tensorlens top``: a job is watched over its socket, and sees nothing of it."""

import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from commands import ROOT, environment

from tensorlens import TensorlensError, load
from tensorlens.cli import main
from tensorlens.lines import DeviceLevel
from tensorlens.live import (
    SCRIPT,
    Ask,
    ProcessEnded,
    ProcessView,
    ServedProcess,
    client,
    protocol,
    serving,
)
from tensorlens.render import TextRenderer
from tests import warm
from tests.json_page import Checker

# each command on standard input is done, and answered with a line
LOOP = """
import os
print("ready", os.getpid(), flush=True)
for command in sys.stdin:
    print(eval(command), flush=True)
"""
# it is entered between two instructions of its main thread
BUSY = """
import os, sys, threading, time
waiting = threading.Thread(target=sys.stdin.read)
waiting.start()
print("ready", os.getpid())
while waiting.is_alive():
    time.sleep(0.01)
"""
BARE = """
import _thread, os, signal, sys, threading
from tensorlens.live import serve
serve()
start = _thread.start_new_thread

def refuse(*given):
    raise RuntimeError("can't start new thread")

def wait_for_a_signal():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    os.kill(os.getpid(), signal.SIGUSR1)
    return int(signal.sigwait({signal.SIGUSR1}))

def fork():
    reading, writing = os.pipe()
    if not (child := os.fork()):
        import psutil
        sockets = len(psutil.Process().net_connections("unix"))
        os.write(writing, b"%d %d" % (os.getpid(), sockets))
        sys.exit()  # with what is to be done at exit
    os.close(writing)
    answer = os.read(reading, 100).decode()
    os.waitpid(child, 0)
    return answer

def threads():
    return len(sys._current_frames()) - 1
"""
TRAINING = """
import sys, threading
import tensorlens
import torch

net = torch.nn.Linear(64, 32, bias=False)
optimizer = torch.optim.SGD(net.parameters())
kept = torch.zeros(1 << 18)
made = []

def step():
    net(torch.ones(16, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

def allocate():
    made.append(torch.zeros(1 << 16))
"""
LINE = 1 + TRAINING.splitlines().index("    made.append(torch.zeros(1 << 16))")


class Program:
    """A job that does a command, and then waits for the next one."""

    def __init__(self, code, folder, launcher=("-c",), interpreter=(sys.executable,), **changes):
        self.process = subprocess.Popen(
            [*interpreter, *launcher, code + LOOP if launcher == ("-c",) else code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=environment(TMPDIR=str(folder), **changes),
        )
        ready = self.process.stdout.readline()
        assert ready.startswith("ready "), self.process.stderr.read()
        self.pid = int(ready.split()[1])

    def do(self, command):
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self):
        """Let it end by itself; return what it printed on standard error."""
        _, errors = self.process.communicate(timeout=120)
        assert self.process.returncode == 0
        return errors


@pytest.fixture(scope="module")
def folder():
    # an address of a Unix socket is short
    made = Path(tempfile.mkdtemp(prefix="top-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture(autouse=True)
def own_sockets(folder, monkeypatch, tmp_path_factory):
    # pytest's own folder is not to lie in it
    tmp_path_factory.getbasetemp()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("COLUMNS", "80")
    # jobs of whoever runs the tests are none of theirs
    of_all = protocol.addresses
    monkeypatch.setattr(
        client,
        "addresses",
        lambda *given: [each for each in of_all(*given) if folder in each.parents],
    )


@pytest.fixture(scope="module")
def training(folder):
    pytest.importorskip("torch")
    program = Program(TRAINING, folder, interpreter=warm.python(), TENSORLENS_LIVE="1")
    yield program
    assert program.end() == ""
    assert not address(folder, program.pid).exists()


@pytest.fixture
def bare(folder):
    # it forks, and from 3.12 on Python warns that it has the serving thread as well
    program = Program(BARE, folder, PYTHONWARNINGS="ignore::DeprecationWarning")
    yield program
    with contextlib.suppress(ProcessLookupError):
        program.process.kill()
    program.process.communicate()


def address(folder, pid):
    return folder / f"tensorlens-live-{os.geteuid()}" / f"{pid}.sock"


@contextlib.contextmanager
def watched(program):
    job = ServedProcess(program.pid)
    yield job
    job.close()


def levels(job):
    return job.ask(Ask.LOOK, census=False)["levels"]


def refused(capsys, *words):
    code = main(["top", *map(str, words)])
    out, errors = capsys.readouterr()
    assert out == "" and errors.count("\n") == 1
    return code, errors.removeprefix("tensorlens: error: ").strip()


def test_folder_and_socket_are_their_users_alone(bare, folder):
    def mode(path):
        return stat.S_IMODE(path.lstat().st_mode)

    assert mode(address(folder, bare.pid).parent) == 0o700
    assert mode(address(folder, bare.pid)) == 0o600
    assert stat.S_ISSOCK(address(folder, bare.pid).lstat().st_mode)


def test_forked_child_does_not_serve_and_leaves_the_parents_socket(bare, folder):
    with watched(bare) as job:
        # what was answered was accepted before the fork
        assert levels(job)["devices"] == []
        child, sockets = bare.do("fork()").split()
        # nor does it hold the parent's open
        assert sockets == "0"
        assert not address(folder, child).exists()
        assert levels(job)["devices"] == []
        with watched(bare) as another:
            assert levels(another)["devices"] == []
    assert bare.end() == ""
    assert not address(folder, bare.pid).exists()


def test_client_that_is_killed_leaves_nothing_on(bare, folder):
    client = f"""
import os, signal
from tensorlens.live import ServedProcess
job = ServedProcess({bare.pid})
job.ask("look", census=False)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", client], cwd=ROOT, env=environment(TMPDIR=str(folder))
    )
    assert done.returncode == -signal.SIGKILL
    while bare.do("threads()") != "1":
        pass
    assert bare.end() == ""


def test_program_that_waits_for_a_signal_gets_it(bare):
    with watched(bare) as job:
        levels(job)
        assert bare.do("wait_for_a_signal()") == str(int(signal.SIGUSR1))
    assert bare.end() == ""


def test_client_is_let_go_where_no_thread_is_left(bare, folder):
    bare.do("setattr(_thread, 'start_new_thread', refuse)")
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(str(address(folder, bare.pid)))
        assert client.recv(100) == b""
    bare.do("setattr(_thread, 'start_new_thread', start)")
    with watched(bare) as job:
        assert levels(job)["devices"] == []
    assert bare.end() == ""


def test_message_that_is_no_json_ends_the_connection_alone(bare, folder):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(address(folder, bare.pid)))
        client.sendall(b"GET / HTTP/1.1\n")
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(100) == b""
    with watched(bare) as job, pytest.raises(Exception, match="is not a valid Ask"):
        job.ask("passwords")
    assert bare.end() == ""


def test_socket_of_a_killed_job_is_named_and_removed_by_the_next(bare, folder, capsys):
    left = address(folder, bare.pid)
    with watched(bare) as job:
        bare.process.kill()
        bare.process.wait()
        with pytest.raises(ProcessEnded, match=f"process {bare.pid} has ended"):
            levels(job)
    assert refused(capsys, bare.pid) == (1, f"process {bare.pid} has ended, and left {left} behind")
    assert serving() == []
    other = Program(BARE, folder)
    assert not left.exists()
    assert serving() == [other.pid]
    other.end()


def test_several_jobs_are_told_with_their_ranks(capsys, folder):
    ranks = [Program(BARE, folder, RANK=str(rank), WORLD_SIZE="2") for rank in (0, 1)]
    named = sorted((job.pid, f"{job.pid} (rank {rank} of 2)") for rank, job in enumerate(ranks))
    assert refused(capsys) == (2, f"which process: {', '.join(name for _, name in named)}?")
    for job in ranks:
        job.end()


def test_refusals_say_what_to_do(capsys, folder):
    own = os.getpid()
    assert refused(capsys) == (
        2,
        "no process can be watched: start one with TENSORLENS_LIVE=1",
    )
    assert refused(capsys, own, "-i", "0") == (2, "--interval 0: give seconds, 0.05 to 30")
    # more than any system gives
    assert refused(capsys, 1 << 30) == (1, f"there is no process {1 << 30}")
    waiting = Program("import sys", folder, TENSORLENS_LIVE="1")
    assert refused(capsys, waiting.pid) == (
        1,
        f"process {waiting.pid} has TENSORLENS_LIVE=1, but cannot be watched yet: it has to import"
        " tensorlens, and torch or tensorflow; if it did, its standard error tells more",
    )
    waiting.end()


def test_late_reply_is_not_taken_for_the_next_one(folder, monkeypatch):
    monkeypatch.setattr(client, "_REPLY_SECONDS", 0.05)
    listening, _ = protocol.listener()
    with listening, contextlib.closing(ServedProcess(os.getpid())) as job:
        with pytest.raises(TensorlensError, match="does not answer"):
            levels(job)
        late, served = (Connection(listening.accept()[0].detach()) for _ in range(2))
        with late, served:
            for connection, number in ((late, 1), (served, 2)):
                with contextlib.suppress(BrokenPipeError):
                    protocol.send(connection, {"version": protocol.VERSION, "n": number})
            assert job.ask(Ask.LOOK, census=False) == {"n": 2}


def test_socket_of_an_earlier_process_is_not_the_entered_one_s(folder, monkeypatch):
    earlier, path = protocol.listener()
    earlier.close()
    assert path.exists()
    begun = []
    monkeypatch.setattr(sys, "remote_exec", lambda pid, script: None, raising=False)
    monkeypatch.setattr(client.time, "sleep", lambda seconds: begun.append(protocol.listener()))
    with contextlib.closing(ServedProcess(os.getpid())):
        ((listening, _),) = begun
        listening.close()


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="there it is entered")
def test_job_that_was_not_prepared_is_refused_before_python_3_14(capsys, folder):
    other = Program("import sys", folder)
    assert refused(capsys, other.pid) == (
        1,
        f"process {other.pid} cannot be watched: start it with TENSORLENS_LIVE=1 in its"
        " environment, or run it and this command by Python 3.14",
    )
    other.end()


@pytest.mark.skipif(sys.version_info < (3, 14), reason="sys.remote_exec is new there")
def test_job_that_was_not_prepared_is_entered_from_python_3_14_on(folder):
    program = Program(BUSY, folder, launcher=("-u", "-c"))
    with watched(program) as job:
        assert levels(job)["steps"] is None
    assert program.end() == ""


def test_script_for_a_job_that_was_not_prepared_serves_it(folder):
    script = SCRIPT.format(answer=str(folder / "answer"))
    program = Program(f"import sys\nexec({script!r})\n", folder)
    with watched(program) as job:
        assert levels(job)["steps"] is None
        with pytest.raises(Exception, match="started with TENSORLENS_LIVE=1"):
            job.ask(Ask.RECORD, steps=1, file=str(folder / "run.tlens"))
    assert program.end() == ""
    assert not (folder / "answer").exists()


def test_job_without_a_place_for_its_socket_runs_and_says_so_once(folder):
    blocked = folder / "blocked"
    blocked.mkdir()
    (blocked / f"tensorlens-live-{os.geteuid()}").write_text("")
    program = Program(BARE, blocked)
    assert program.do("1 + 1") == "2"
    errors = program.end()
    assert errors.count("\n") == 1
    assert errors.startswith("tensorlens: tensorlens top cannot watch this process: ")
    assert f"{blocked / f'tensorlens-live-{os.geteuid()}'}: it is not this user's" in errors


def test_bytes_of_a_training_are_exact(training):
    with watched(training) as job:
        device, allocated, peak, _ = levels(job)["devices"][0].values()
        tensors = job.ask(Ask.LOOK, census=True)["tensors"]
        # four bytes each: the weight of 64 x 32, and kept of 2 ** 18
        rows = {row["name"]: [*row.values()] for row in tensors["rows"]}
        assert rows["kept"] == ["kept", 1, "other", "cpu", "(262144,)", 1 << 20]
        assert rows["net.weight"][2:] == ["parameter", "cpu", "(32, 64)", 8192]
        roles = {each["role"]: each["nbytes"] for each in tensors["roles"]}
        assert roles["parameter"] == 8192
        # all that there is was counted, from the import on
        assert (device, allocated) == ("cpu", sum(roles.values()))
        assert peak == allocated


def test_json_is_one_document_as_documented(training, capsys):
    assert main(["top", str(training.pid), "--json", "--interval", "0.05"]) == 0
    found = json.loads(capsys.readouterr().out)
    Checker().check(found)
    assert found["schema"] == "tensorlens.live" and found["pid"] == training.pid
    rows = {row["name"]: row for row in found["tensors"]["rows"]}
    assert (rows["kept"]["nbytes"], rows["net.weight"]["nbytes"]) == (1 << 20, 8192)


def lines_of(job):
    rows = (list(row.values()) for row in job.ask(Ask.LOOK, census=False)["lines"]["rows"])
    return {line: figures for line, *figures in rows}


def test_line_that_allocates_while_it_is_watched_is_named(training):
    with watched(training) as job:
        lines_of(job)
        for count in (1, 2):
            training.do("allocate()")
            rows = lines_of(job)
            (line,) = (each for each in rows if each.endswith(f":{LINE} in allocate"))
            assert rows[line] == ["cpu", count << 18, count << 18, count]
        training.do("made.clear()")
        # the most that was seen stays
        rows = lines_of(job)
        assert rows[line] == ["cpu", 0, 2 << 18, 0]


def test_next_steps_are_recorded_and_written(training, tmp_path):
    file = tmp_path / "run.tlens"
    with watched(training) as job:
        before = levels(job)["steps"]
        job.ask(Ask.RECORD, steps=2, file=str(file))
        for count in range(3):
            # it begins when a step ends
            assert not file.exists()
            training.do("step()")
            assert levels(job)["steps"] == before + count + 1
        while (found := levels(job))["is_recording"]:
            pass
        assert found["recording"] == f"wrote {file}: 2 steps"
    recording = load(file)
    assert [mark.name for mark in recording.marks] == [f"step {before + 2}", f"step {before + 3}"]
    # in each of them the gradient of the weight
    sizes = [event.nbytes for event in recording.events if event.action == "alloc"]
    assert sizes.count(64 * 32 * 4) == 2


def test_recording_that_is_on_at_the_end_of_a_run_is_written(folder, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(TRAINING.replace("import tensorlens\n", "") + LOOP)
    launcher = ("-m", "tensorlens", "run")
    given = {"interpreter": warm.python(), "TENSORLENS_LIVE": "1"}
    program = Program(str(tmp_path / "train.py"), folder, launcher, **given)
    with watched(program) as job:
        job.ask(Ask.RECORD, steps=5, file=str(tmp_path / "run.tlens"))
        for _ in range(3):
            program.do("step()")
    program.end()
    assert [mark.name for mark in load(tmp_path / "run.tlens").marks] == ["step 2", "step 3"]


def test_recording_without_a_step_says_so(training, tmp_path):
    file = tmp_path / "run.tlens"
    with watched(training) as job:
        waits = job.ask(Ask.RECORD, steps=1, file=str(file))["text"]
        assert waits.startswith("the recording ")
        job.ask(Ask.RECORD, steps=0, file=str(file))
        while (found := levels(job))["is_recording"]:
            pass
        assert found["recording"] == "no step was recorded"
    assert not file.exists()


def test_program_sees_no_thread(training, tmp_path):
    with watched(training) as job:
        job.ask(Ask.RECORD, steps=1, file=str(tmp_path / "run.tlens"))
        job.ask(Ask.SNAPSHOT, file=str(tmp_path / "snapshot.json"))
        assert job.ask(Ask.LOOK, census=True)["tensors"]["count"] > 0
        assert training.do("threading.enumerate() == [threading.main_thread()]") == "True"
        job.ask(Ask.RECORD, steps=0, file=str(tmp_path / "run.tlens"))


def test_file_that_cannot_be_written_is_refused_in_one_line(training, tmp_path):
    (tmp_path / "there.json").write_text("")
    away = tmp_path / "away" / "x.tlens"
    with watched(training) as job:
        with pytest.raises(Exception, match=r"there\.json: it exists"):
            job.ask(Ask.SNAPSHOT, file=str(tmp_path / "there.json"))
        with pytest.raises(Exception, match="its folder cannot be written to"):
            job.ask(Ask.RECORD, steps=1, file=str(away))


def test_one_frame_is_printed_where_nobody_looks(training, capsys):
    assert main(["top", str(training.pid), "-i", "0.05"]) == 0
    shown, errors = capsys.readouterr()
    assert errors == ""
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.startswith(f"Process {training.pid}, ")
    assert re.search(r"\n +1\.00 MiB  other +\(262144,\) +kept\n", shown)
    assert re.search(r"\n       .*parameter 8\.00 KiB", shown)
    assert re.search(r"\(allocated before it was watched\)\n", shown)


def test_frame_in_a_terminal_without_utf_8(training):
    done = subprocess.run(
        [sys.executable, "-m", "tensorlens", "top", str(training.pid), "-i", "0.05"],
        capture_output=True,
        cwd=ROOT,
        env=environment(TMPDIR=os.environ["TMPDIR"], PYTHONIOENCODING="ascii"),
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii() and b"\\u" not in done.stdout


def test_missing_rich_is_named_in_one_line(training):
    code = "import sys; sys.modules['rich'] = None; from tensorlens.cli import main; main()"
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", code, "top", str(training.pid)],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(TMPDIR=os.environ["TMPDIR"]),
    )
    os.close(theirs)
    os.close(ours)
    assert done.stderr == (
        "tensorlens: error: it needs rich: pip install 'tensorlens[top]'; --once does without\n"
    )


@contextlib.contextmanager
def viewer(program, folder):
    """Run ``top`` in a terminal; give what presses a key, and what reads until a text is shown."""
    pytest.importorskip("rich")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tensorlens", "top", str(program.pid), "-i", "0.2"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env=environment(
            TMPDIR=os.environ["TMPDIR"],
            TERM="xterm",
            **{"COLUMNS": "100", "LINES": "40"},
        ),
    )
    os.close(theirs)

    def shown_until(text):
        shown = ""
        while text not in shown:
            ready, _, _ = select.select([ours], [], [], 60)
            assert ready, shown
            shown += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", os.read(ours, 1 << 16).decode())

    yield lambda key: os.write(ours, key), shown_until
    assert process.wait(60) == 0
    os.close(ours)


def test_keys_sort_and_take_a_snapshot_and_quit(training, tmp_path):
    with viewer(training, tmp_path) as (press, shown_until):
        shown_until("Now *")
        press(b"s")
        shown_until("Most *")
        press(b"t")
        shown_until(f"snapshot-{training.pid}.json")
        press(b"q")
    (file,) = tmp_path.iterdir()
    assert {tensor.name for tensor in load(file).tensors} >= {"kept", "net.weight"}


@pytest.mark.parametrize("is_killed", [False, True])
def test_end_of_a_job_that_records_is_told_with_the_file(folder, tmp_path, is_killed):
    pytest.importorskip("torch")
    program = Program(TRAINING, folder, interpreter=warm.python(), TENSORLENS_LIVE="1")
    file = tmp_path / f"recording-{program.pid}.tlens"
    with viewer(program, tmp_path) as (press, shown_until):
        shown_until("Now *")
        press(b"r")
        shown_until("none was seen so far")
        program.do("step()")
        program.do("step()")
        if is_killed:
            program.process.kill()
            program.process.communicate()
        else:
            program.end()
        what = "it did not write" if is_killed else "the recording is in"
        shown_until(f"tensorlens: process {program.pid} has ended; {what} {file}")
    assert file.exists() != is_killed


class GrowingProcess:
    """A job of which a look is asked for: the resident set, and the tensors on the host."""

    pid = 1

    def __init__(self, *levels):
        self.levels = iter(levels)

    def ask(self, ask, **_):
        resident, allocated = (each << 20 for each in next(self.levels))
        cpu = DeviceLevel("cpu", allocated, allocated, resident)
        levels = {"command": "train.py", "rank": "", "steps": 1, "devices": [asdict(cpu)]}
        levels.update(notes=[], recording="", is_recording=False)
        lines = {"seconds": 0.0, "rows": [], "notes": []}
        return {"levels": levels, "lines": lines, "tensors": None}


@pytest.mark.parametrize(
    ("levels", "grown"),
    [
        # 40 MiB more without tensors in the second half than in the first
        ([(300, 100), (320, 100), (340, 100), (360, 100)], "40.00 MiB"),
        # with tensors
        ([(300, 100), (320, 120), (340, 140), (360, 160)], None),
        # a kernel's scratch, now and then
        ([(300, 100), (400, 100), (400, 100), (300, 100)], None),
        ([(300, 100), (320, 100), (340, 100)], None),
    ],
)
def test_host_memory_that_grows_without_tensors_is_told(levels, grown):
    view = ProcessView(GrowingProcess(*levels))
    for _ in levels:
        view.look(census=False)
    note = f"note: host memory without tensors grew by {grown} in 0 s: tensorlens leaks tells"
    assert (note in view.text(TextRenderer(100), None)) == (grown is not None)


def test_connections_wait_whatever_the_program_has_set_for_its_sockets():
    one, other = socket.socketpair()
    # as socket.setdefaulttimeout() does to what is accepted
    one.settimeout(0.001)
    with other, protocol.connection_of(one, 60) as connection:
        assert os.get_blocking(connection.fileno())


def test_a_message_of_which_the_rest_does_not_come_is_given_up():
    one, other = socket.socketpair()
    with other, protocol.connection_of(one, 0.01) as connection:
        other.sendall(b"\0\0\0\x10half")
        with pytest.raises(BlockingIOError):
            protocol.receive(connection)
