"""The report when the program ends, whichever way it ends, and what the program's end looks like.

Most programs here import no framework: how a process ends is the same, and faster.
"""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from line_figures import ROOT

from tests import warm

HEAD = """
import os, signal, sys, threading, time
import tensorlens

@tensorlens.profile
def work(size=1000):
    kept = bytearray(size)
    return len(kept)

"""
TITLE = "work  "
PLAIN = (sys.executable,)


@pytest.fixture
def start(tmp_path):
    """Start a program of its own file; ``HEAD`` comes first."""

    def start(
        code, *, head=HEAD, stdin=None, stdout=subprocess.PIPE, interpreter=(), **environment
    ):
        script = tmp_path / "program.py"
        script.write_text(head + textwrap.dedent(code))
        return subprocess.Popen(
            [*(interpreter or warm.python(bare=True, ends=True)), str(script)],
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            # a buffered standard output, whatever it is here
            env={
                **{name: os.environ[name] for name in os.environ if name != "PYTHONUNBUFFERED"},
                "PYTHONPATH": str(ROOT),
                "PYTHONIOENCODING": "utf-8",
                **environment,
            },
        )

    return start


@pytest.fixture
def run(start):
    def run(code, **options):
        process = start(code, **options)
        out, err = process.communicate(timeout=60)
        return process.returncode, out or "", err

    return run


@pytest.fixture
def run_warm(run):
    """Run what is not about the interpreter's own end, which a fork is spared."""

    def run_warm(code, **options):
        return run(code, interpreter=warm.python(bare=True), **options)

    return run_warm


def tables(out, name="work"):
    return sum(line.startswith(f"{name}  ") for line in out.splitlines())


def wait_for(process, text):
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(process.stderr.read())


class TestEndings:
    def test_report_at_normal_end(self, run):
        status, out, err = run("work(); work(); print('done')", interpreter=PLAIN)
        assert (status, err) == (0, "")
        assert out.startswith("done\nMemory per line")
        assert tables(out) == 1
        assert "2 calls" in out

    def test_report_after_sys_exit(self, run):
        status, out, err = run("work(); sys.exit(3)")
        assert (status, err) == (3, "")
        assert tables(out) == 1

    def test_an_exception_marks_its_line(self, run):
        status, out, err = run("work('many')")
        assert status == 1
        assert "line 7 raised TypeError: string argument without an encoding" in out
        assert "✗ 7" in out
        assert err.count("Traceback") == 1
        assert err.endswith("TypeError: string argument without an encoding\n")

    def test_out_of_memory_marks_its_line(self, run):
        status, out, err = run(
            """
            import torch
            @tensorlens.profile
            def allocate():
                small = torch.ones(1000)
                large = torch.empty(1 << 50)
                return small, large
            allocate()
            """,
            interpreter=warm.python(),
        )
        assert status == 1
        (row,) = (line for line in out.splitlines() if "torch.empty(1 << 50)" in line)
        assert row.startswith("✗ 15")
        assert "✗ line 15 raised RuntimeError: " in out
        assert "allocate" in out
        assert "4.00 PiB" in out or "4503599627370496" in out
        assert err.count("Traceback") == 1

    def test_report_after_ctrl_c(self, start):
        process = start("work(); print('ready', flush=True); time.sleep(60)")
        wait_for(process, "ready")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=100)
        assert tables(out) == 1
        assert err.endswith("KeyboardInterrupt\n")
        # as plain Python ends: by the signal
        assert process.returncode == -signal.SIGINT

    def test_ctrl_c_inside_a_profiled_function(self, start):
        process = start(
            """
            @tensorlens.profile
            def wait():
                print('ready', flush=True)
                time.sleep(60)
            wait()
            """
        )
        wait_for(process, "ready")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=100)
        assert "raised KeyboardInterrupt" in out
        assert process.returncode == -signal.SIGINT

    def test_report_after_sigterm(self, start):
        process = start("work(); print('ready', flush=True); time.sleep(60)")
        wait_for(process, "ready")
        process.terminate()
        out, err = process.communicate(timeout=100)
        assert tables(out) == 1
        assert err == ""
        assert process.returncode == -signal.SIGTERM

    def test_a_sigterm_handler_of_the_program_stays(self, run):
        code = "work(); os.kill(os.getpid(), signal.SIGTERM); time.sleep(1); sys.exit(9)"
        handler = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        for head in (HEAD + handler, "import signal, sys\n" + handler + HEAD):
            status, out, err = run(code, head=head)
            assert (status, err) == (5, "")
            assert tables(out) == 1

    def test_an_ignored_sigterm_stays_ignored(self, run):
        head = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + HEAD
        status, out, _ = run("work(); os.kill(os.getpid(), signal.SIGTERM)", head=head)
        assert status == 0
        assert tables(out) == 1

    def test_os_exit_prints_first(self, run):
        status, out, err = run("work(); os._exit(4)")
        assert (status, err) == (4, "")
        assert tables(out) == 1

    def test_a_daemon_thread_that_still_runs(self, run):
        status, out, err = run(
            """
            def forever():
                while True:
                    work()
            threading.Thread(target=forever, daemon=True).start()
            time.sleep(0.2)
            """,
            interpreter=PLAIN,
        )
        assert (status, err) == (0, "")
        assert tables(out) == 1

    def test_functions_of_atexit_that_were_registered_later_come_first(self, run):
        status, out, _ = run(
            """
            import atexit
            atexit.register(lambda: print('last words', work()))
            """,
            interpreter=PLAIN,
        )
        assert status == 0
        assert out.startswith("last words 1000\nMemory per line")
        assert "1 call" in out


class TestWhatIsReported:
    def test_function_never_called(self, run_warm):
        status, out, err = run_warm("pass")
        assert (status, err) == (0, "")
        (line,) = (line for line in out.splitlines() if line.startswith("work"))
        assert line.endswith("never called")

    def test_cleared_functions_are_left_out(self, run_warm):
        status, out, err = run_warm(
            """
            @tensorlens.profile
            def later():
                return work()
            @tensorlens.profile
            def unused():
                pass
            work(), later()
            tensorlens.clear_global_line_profiler()
            notes = [each.note for each in tensorlens.profile.result().functions]
            print(notes)
            """
        )
        assert (status, err) == (0, "")
        cleared = "not called since the figures were cleared"
        assert out.splitlines()[0] == str([cleared, cleared, "never called"])
        assert (tables(out), tables(out, "later"), tables(out, "unused")) == (0, 0, 1)

    def test_function_run_after_clear_is_reported(self, run_warm):
        status, out, err = run_warm(
            """
            work(), work()
            tensorlens.clear_global_line_profiler()
            work()
            """
        )
        assert (status, err, tables(out)) == (0, "", 1)
        assert "1 call\n" in out

    def test_every_prints_fresh_figures(self, run_warm):
        _, out, err = run_warm(
            """
            @tensorlens.profile(every=2)
            def often(index):
                if index >= 4:
                    raise ValueError(index)
            for index in range(3):
                often(index)
                print('after', index)
            often(3)
            try:
                often(4)
            except ValueError:
                print('caught')
            """
        )
        assert err == ""
        titles = [
            line.rsplit("  ", 1)[-1] if line.startswith("often  ") else line
            for line in out.splitlines()
            if line.startswith(("often  ", "after", "caught"))
        ]
        # each pair of calls, the failing call, and nothing of it again at exit
        assert titles == [
            "after 0",
            "2 calls",
            "after 1",
            "after 2",
            "2 calls",
            "1 call",
            "caught",
        ]
        assert "raised ValueError: 4" in out

    def test_the_rest_of_every_is_printed_at_exit(self, run_warm):
        _, out, _ = run_warm(
            """
            @tensorlens.profile(every=2)
            def often(): pass
            [often() for _ in range(3)]
            print('end')
            """
        )
        before, after = out.split("end\n")
        assert (tables(before, "often"), tables(after, "often")) == (1, 1)
        assert "2 calls" in before
        assert "1 call" in after

    def test_every_leaves_what_a_call_does_after_another_has_ended_to_the_exit(self, run_warm):
        status, out, err = run_warm(
            """
            inside, go_on = threading.Event(), threading.Event()
            @tensorlens.profile(every=1)
            def step(waits):
                if waits:
                    inside.set()
                    go_on.wait(60)
            waiting = threading.Thread(target=step, args=(True,))
            waiting.start()
            inside.wait(60)
            step(False)
            print('end')
            go_on.set()
            waiting.join(60)
            """
        )
        before, after = out.split("end\n")
        assert (status, err) == (0, "")
        assert (tables(before, "step"), tables(after, "step")) == (1, 1)
        assert "2 calls" in before
        assert "0 calls" in after

    def test_two_profilers_at_once(self, run_warm):
        status, out, err = run_warm(
            """
            other = tensorlens.LineProfiler(work.__wrapped__)
            with other:
                work()
            work()
            print(other.result().functions[0].calls)
            """
        )
        assert (status, err) == (0, "")
        assert out.startswith("1\n")
        assert "2 calls" in out

    def test_a_stream_and_standard_error(self, run_warm):
        code = """
        @tensorlens.profile(stream=sys.stderr)
        def loud(): pass
        loud()
        """
        _, out, err = run_warm(code)
        assert (tables(out, "loud"), tables(err, "loud")) == (0, 1)
        _, out, err = run_warm("work()", TENSORLENS_STREAM="stderr")
        assert (out, tables(err)) == ("", 1)


class TestProcesses:
    def test_a_forked_child_reports_what_it_ran(self, run):
        status, out, err = run(
            """
            work()
            child = os.fork()
            if child == 0:
                work(); work()
                sys.exit(0)
            os.waitpid(child, 0)
            """
        )
        assert (status, err) == (0, "")
        assert tables(out) == 2
        first, second = out.split("Memory per line")[1:]
        assert ", process " in first.splitlines()[0]
        assert "2 calls" in first
        assert "1 call" in second

    @pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
    def test_reports_of_workers(self, run, method):
        status, out, err = run(
            f"""
            import multiprocessing
            if __name__ == "__main__":
                context = multiprocessing.get_context({method!r})
                worker = context.Process(target=work, name="Worker")
                worker.start()
                worker.join()
                assert worker.exitcode == 0
                print('joined')
            """
        )
        assert (status, err) == (0, "")
        worker, main = out.split("joined\n")
        assert "(Worker)" in worker
        assert "1 call" in worker
        assert "never called" in main

    def test_reports_of_a_pool(self, run_warm):
        status, out, err = run_warm(
            """
            import multiprocessing
            if __name__ == "__main__":
                with multiprocessing.get_context("fork").Pool(2) as pool:
                    assert pool.map(work, range(8)) == list(range(8))
                    pool.close()
                    pool.join()
            """
        )
        assert (status, err) == (0, "")
        calls = [
            int(line.split()[-2])
            for line in out.splitlines()
            if line.startswith(TITLE) and "never" not in line
        ]
        assert sum(calls) == 8
        assert "never called" in out

    def test_a_worker_that_fails_ends_as_before(self, run_warm):
        status, out, err = run_warm(
            """
            import multiprocessing
            if __name__ == "__main__":
                worker = multiprocessing.get_context("fork").Process(target=work, args=("x",))
                worker.start()
                worker.join()
                print(worker.exitcode)
            """
        )
        assert status == 0
        assert "raised TypeError" in out
        assert "\n1\n" in out
        assert err.count("Traceback") == 1

    def test_a_terminated_worker_reports_nothing(self, run_warm):
        status, out, err = run_warm(
            """
            import multiprocessing
            def stay(queue):
                work()
                queue.put(1)
                time.sleep(60)
            if __name__ == "__main__":
                context = multiprocessing.get_context("fork")
                queue = context.SimpleQueue()
                worker = context.Process(target=stay, args=(queue,))
                worker.start()
                queue.get()
                worker.terminate()
                worker.join(100)
                print(worker.exitcode)
            """
        )
        assert (status, err) == (0, "")
        assert out.startswith("-15\n")
        assert tables(out) == 1  # the parent's


class TestNowhereToPrint:
    def test_a_closed_standard_output(self, run):
        assert run("work(); sys.stdout.close(); sys.exit(3)") == (3, "", "")
        assert run("work(); sys.stdout = None; sys.exit(3)") == (3, "", "")

    def test_a_reader_that_went_away(self, start):
        # as in `program | head -1`
        waits = "work(); print('ready', flush=True); os.read(0, 1); sys.exit(3)"
        process = start(waits, stdin=subprocess.PIPE)
        wait_for(process, "ready")
        process.stdout.close()
        process.stdin.close()
        err = process.stderr.read()
        assert (process.wait(100), err) == (3, "")

    @pytest.mark.parametrize(
        ("before", "unbuffered"),
        [("pass", ""), ("pass", "1"), ("print('mine')", ""), ("print('mine' * 10**5)", "")],
    )
    def test_a_full_disk(self, start, before, unbuffered):
        ends = []
        alone = HEAD.replace("import tensorlens", "").replace("@tensorlens.profile", "")
        for head in (alone, HEAD):
            with open("/dev/full", "w") as full:  # noqa: PTH123
                process = start(
                    f"work(); {before}; sys.exit(3)",
                    head=head,
                    stdout=full,
                    interpreter=PLAIN,
                    PYTHONUNBUFFERED=unbuffered,
                )
            ends.append((process.communicate(timeout=100)[1], process.returncode))
        # a failure of the program's own output is its own, and the same
        assert ends[0] == ends[1]
        assert before != "pass" or ends[1] == ("", 3)

    def test_a_stream_of_the_program_that_fails(self, run_warm):
        status, out, err = run_warm(
            """
            class Broken:
                def write(self, text):
                    raise LookupError("no such place")
                def flush(self): pass
            @tensorlens.profile(every=1, stream=Broken())
            def quiet(): return 7
            print(quiet())
            sys.exit(3)
            """
        )
        assert (status, out.splitlines()[0]) == (3, "7")
        assert err == "tensorlens: no report: LookupError: no such place\n"

    def test_an_encoding_without_our_signs(self, run_warm):
        status, out, err = run_warm("work()", PYTHONIOENCODING="ascii")
        assert (status, err) == (0, "")
        assert tables(out) == 1


def test_exit_report_under_pytest(tmp_path):
    (tmp_path / "test_it.py").write_text(HEAD + "def test_work():\n    assert work() == 1000\n")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "1 passed" in result.stdout
    assert tables(result.stdout) == 1


def test_a_signal_that_comes_during_the_report_does_not_repeat_it(start):
    process = start(
        """
        class Slow:
            def write(self, text):
                sys.__stdout__.write(text)
                sys.__stdout__.flush()
                os.read(0, 1)  # until communicate() closes it: the signal was sent by then
            def flush(self): pass
        sys.stdout = Slow()
        work()
        """,
        stdin=subprocess.PIPE,
    )
    wait_for(process, "Memory per line")
    process.terminate()
    rest, _ = process.communicate(timeout=100)
    assert process.returncode == -signal.SIGTERM
    assert tables(rest) <= 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_report_waits_for_it(start, number):
    process = start(
        """
        class Slow:
            def write(self, text):
                os.write(1, b"begun\\n")
                os.read(0, 1)  # until communicate() closes it: the signal was sent by then
                os.write(1, text.encode())
            def flush(self): pass
        sys.stdout = Slow()
        work()
        """,
        stdin=subprocess.PIPE,
    )
    wait_for(process, "begun")
    process.send_signal(number)
    rest, _ = process.communicate(timeout=100)
    assert process.returncode == -number
    assert tables(rest) == 1
