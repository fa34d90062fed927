"""torch and TensorFlow in one process, whichever comes first: every figure is that of both."""

import importlib.util
import json
import subprocess
import sys

import pytest

from tests.warm import python

PROGRAM = """
import importlib, json, sys
import tensorlens
from tensorlens.lines import CounterSlots

names = sys.argv[1:]
libraries = {names[0]: importlib.import_module(names[0])}


def made(name):
    # 1000 and 700 numbers of 4 bytes each
    library = libraries[name]
    return library.zeros(1000) if name == "torch" else library.zeros((700,))


profiler = tensorlens.LineProfiler()


@profiler
def step(*names):
    return [made(name) for name in names]  # the line


found = {}
early = step(names[0])
with tensorlens.record() as recording:
    libraries[names[1]] = importlib.import_module(names[1])
    held = step("torch", "tensorflow")
    recording.mark("made")
blocks = recording.at("made", "cpu").tensors
ours = [block for block in blocks if block.nbytes in (4000, 2800)]
found["before"] = [block.nbytes for block in ours if block.age_ns is None]
found["recorded"] = sorted(
    (block.nbytes, block.born.lineno) for block in ours if block.age_ns is not None
)
found["source"] = recording.origin.source["cpu"]

snapshot = tensorlens.MemReporter(held=held).snapshot()
ledger = snapshot.ledger["cpu"]
found["named"] = {t.name: t.nbytes for t in snapshot.tensors if t.name.startswith("held")}
found["balance"] = ledger.allocated - ledger.named - ledger.unnamed
slots = CounterSlots()
slots.refresh()
counter = slots.host()
before = counter.reader()()[0]
more = step("torch", "tensorflow")
found["counted"] = counter.reader()()[0] - before
del more
found["freed"] = counter.reader()()[0] - before

tf, kept = libraries["tensorflow"], []
queue = tf.queue.FIFOQueue(1000, [tf.float32], shapes=[(256,)])


def leak():
    kept.append([made("torch"), made("tensorflow")])
    queue.enqueue(tf.zeros(256))


leaks = sorted(tensorlens.find_leaks(leak, steps=6).leaks, key=lambda leak: leak.bytes_per_step)
found["of the runtime"] = [leaks[0].bytes_per_step, leaks[0].reason]
found["leaks"] = [(leak.bytes_per_step, leak.born.lineno) for leak in leaks[1:]]
(function,) = profiler.result().functions
(line,) = [each for each in function.lines if "the line" in each.source]
found["calls"], found["net"] = function.calls, line.memory["cpu"].net
print(json.dumps(found))
"""


@pytest.mark.parametrize("first", ["torch", "tensorflow"])
def test_all_figures_are_those_of_both_in_either_order(tmp_path, first):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    script = tmp_path / "both.py"
    script.write_text(PROGRAM)
    second = "tensorflow" if first == "torch" else "torch"
    # in a warm one TensorFlow's libraries are loaded already, as if it had come first
    interpreter = [sys.executable] if first == "torch" else python(tensorflow=True)
    command = [*interpreter, str(script), first, second]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(
        done.stdout.partition("{")[1] + done.stdout.partition("{")[2].splitlines()[0]
    )
    line = 1 + PROGRAM.splitlines().index(
        '    return library.zeros(1000) if name == "torch" else library.zeros((700,))'
    )
    early = 4000 if first == "torch" else 2800
    assert found["before"] == [early]
    assert found["recorded"] == [[2800, line], [4000, line]]
    order = {"torch": "torch CPU allocator", "tensorflow": "TensorFlow CPU allocator"}
    assert found["source"] == f"{order[first]} and {order[second]}"
    assert found["named"] == {"held[0]": 4000, "held[1]": 2800}
    assert found["balance"] == 0
    assert (found["counted"], found["freed"]) == (6800, 0)
    assert found["leaks"] == [[2800.0, line], [4000.0, line]]
    # in the words of the framework that counted it
    nbytes, reason = found["of the runtime"]
    assert nbytes == 1024 and "TensorFlow's runtime" in reason
    # three calls, and none forgotten because another framework came
    assert (found["calls"], found["net"]) == (3, early + 6800 + 6800)
