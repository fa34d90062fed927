"""Recordings of every kind, made by hand, for the tests of the renderers.

The training step runs ``train.py``, whose lines are :data:`SOURCE`. With sizes in KiB:

    row  what                          resident after it
    0    100 fc1.weight, at the start  100
    1    20 the batch, at the start    120
    2    40 line 2 (fc1: aten::addmm)  160
    3    8 line 3                      168
    4    100 backward of line 2        268, the peak
    5    free of row 2                 228
    6    free of row 3                 220
    7    30 line 5, in the optimizer   250
    8    free of row 7                 220
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from itertools import accumulate
from typing import Any

from tensorlens import Recording
from tensorlens.records import (
    ALLOC,
    FREE,
    OOM,
    SEGMENT_ALLOC,
    START,
    Context,
    EventLog,
    Frame,
    Label,
    Mark,
    Origin,
    Segment,
    SegmentBlock,
)

KIB = 1024
MS = 1_000_000
SOURCE = [
    "def step():",
    "    h = net(x)",
    "    loss = h.sum()",
    "    loss.backward()",
    "    optimizer.step()",
    "",
    "",
    "for _ in range(9):",
    "    step()",
]
HOSTILE = "</script><script>alert(1)</script><!-- \"' & \u2028 \x1b[31m {{ 'ab'*9 }} <b>bold</b>"

TORCH = "/site-packages/torch/"
CALL = Frame(TORCH + "nn/modules/module.py", 1800, "_call_impl", False)
ENGINE = Frame(TORCH + "autograd/graph.py", 800, "_engine_run_backward", False)
OPTIMIZER = Frame(
    TORCH + "optim/optimizer.py", 500, "Optimizer.profile_hook_step.<locals>.wrapper", False
)


class Step:
    """The stacks of the training step in a log."""

    def __init__(self, log: EventLog, filename: str = "train.py", module: str = "fc1") -> None:
        push = log.stacks.push
        main = push(-1, Frame(filename, 9, "<module>"))
        self.forward = push(push(main, Frame(filename, 2, "step")), CALL, module)
        self.loss = push(main, Frame(filename, 3, "step"))
        self.backward = push(push(main, Frame(filename, 4, "step")), ENGINE)
        self.optimizer = push(push(main, Frame(filename, 5, "step")), OPTIMIZER)


def training() -> Recording:
    log = EventLog()
    at = Step(log)
    log.append(START, "cpu", 0x100, 100 * KIB, 0)
    log.name(0, Label("fc1.weight", "parameter", "float32", (160, 160)))
    log.append(START, "cpu", 0x200, 20 * KIB, 0)
    log.name(1, Label("step(): x", "input", "float32", (32, 160)))
    log.marks.append(Mark("forward", 2, 1 * MS))
    forward = Context(op="aten::addmm", grad=True)
    log.append(ALLOC, "cpu", 0x300, 40 * KIB, 1 * MS, at.forward, forward)
    log.append(ALLOC, "cpu", 0x400, 8 * KIB, 2 * MS, at.loss, Context(op="aten::sum", grad=True))
    log.marks.append(Mark("backward", 4, 3 * MS))
    node = Context(op="aten::mm", outer="aten::matmul", node="AddmmBackward0", forward=at.forward)
    log.append(ALLOC, "cpu", 0x500, 100 * KIB, 3 * MS, at.backward, node)
    log.name(4, Label("fc1.weight.grad", "gradient", "float32", (160, 160)))
    log.append(FREE, "cpu", 0x300, 40 * KIB, 4 * MS, at.backward, node)
    log.append(FREE, "cpu", 0x400, 8 * KIB, 5 * MS, at.backward)
    step = Context(op="aten::sqrt")
    log.append(ALLOC, "cpu", 0x300, 30 * KIB, 6 * MS, at.optimizer, step)
    log.append(FREE, "cpu", 0x300, 30 * KIB, 7 * MS, at.optimizer, step)
    log.marks.append(Mark("end", 9, 8 * MS))
    log.sources["train.py"] = SOURCE
    origin = Origin(
        source={"cpu": "torch CPU allocator"},
        notes=("stacks are of Python alone",),
    )
    return Recording(log, origin)


def empty() -> Recording:
    return Recording(EventLog())


def one_event() -> Recording:
    log = EventLog()
    log.append(ALLOC, "cpu", 0x100, 512, 0)
    return Recording(log)


def only_start() -> Recording:
    log = EventLog()
    log.append(START, "cpu", 0x100, 512, 0)
    log.append(START, "cpu", 0x200, 0, 0)
    return Recording(log)


def nothing_allocated() -> Recording:
    """A free of a block that was handed out before the recording, and a request for nothing."""
    log = EventLog()
    log.append(FREE, "cpu", 0x100, 512, 0)
    log.append(ALLOC, "cpu", 0x200, 0, 5)
    return Recording(log)


def no_stacks() -> Recording:
    log = EventLog()
    for number in range(60):
        log.append(ALLOC, "cpu", number + 1, 1000 + number, number)
    return Recording(log, Origin(provenance="estimated", process="rank 1", dropped=5))


def two_devices() -> Recording:
    """CUDA with its segments: 1 MiB asked for in a block of 1.5 MiB, a request that failed."""
    log = EventLog()
    stack = log.stacks.add([Frame("train.py", 2, "step"), Frame("train.py", 9, "<module>")])
    log.append(ALLOC, "cpu", 0x100, 4 * KIB, 1, stack)
    log.append(SEGMENT_ALLOC, "cuda:0", 0x7F00, 20 * KIB * KIB, 2, stack)
    row = log.append(ALLOC, "cuda:0", 0x7F00, KIB * KIB, 3, stack)
    log.held[row] = 3 * KIB * KIB // 2
    log.append(OOM, "cuda:0", 0, KIB**3, 4, stack)
    block = SegmentBlock(0x7F00, 3 * KIB * KIB // 2, KIB * KIB, "active_allocated", stack)
    free = SegmentBlock(0x7F00 + block.size, 20 * KIB * KIB - block.size, 0, "inactive")
    log.segments.append(Segment("cuda:0", 0x7F00, 20 * KIB * KIB, blocks=(block, free)))
    log.segments_known = True
    return Recording(log, Origin(source={"cuda:0": "CUDA memory history"}))


def hostile() -> Recording:
    """Every text that a user can choose is hostile."""
    log = EventLog()
    at = Step(log, HOSTILE, HOSTILE)
    log.append(START, HOSTILE, 0x100, 100 * KIB, 0)
    log.name(0, Label(HOSTILE, "parameter", HOSTILE, (1,)))
    log.append(ALLOC, HOSTILE, 0x200, 50 * KIB, 5, at.forward, Context(op=HOSTILE, grad=True))
    node = Context(op=HOSTILE, node=HOSTILE, forward=at.forward)
    log.append(ALLOC, HOSTILE, 0x300, 70 * KIB, 6, at.backward, node)
    log.name(2, Label(HOSTILE, "gradient"))
    log.marks += [Mark(HOSTILE, 1, 1), Mark(HOSTILE, 3, 6)]
    log.sources[HOSTILE] = [HOSTILE] * 9
    origin = Origin(process=HOSTILE, notes=(HOSTILE,), source={HOSTILE: HOSTILE})
    return Recording(log, origin)


def dropped() -> Recording:
    """The highest instant, 510 B after 2 ms, was among the events that were dropped.

    Of 15 B that were left 5 had been made among them, after 3 ms. Kept are an allocation of 20 B
    after 7 ms and its free after 9.
    """
    log, before = EventLog(), EventLog()
    at, earlier = Step(log), Step(before)
    log.append(START, "cpu", 0x100, 10, 0)
    log.append(START, "cpu", 0x180, 5, 3 * MS, at.loss, Context(op="aten::sum", grad=True))
    log.append(ALLOC, "cpu", 0x200, 20, 7 * MS)
    log.append(FREE, "cpu", 0x200, 20, 9 * MS)
    made = Context(op="aten::addmm", grad=True)
    before.append(START, "cpu", 0x300, 500, 2 * MS, earlier.forward, made)
    before.append(START, "cpu", 0x100, 10, 0)
    return Recording(log, Origin(dropped=1234, dropped_peaks={"cpu": before}))


def steps(count: int = 40) -> Recording:
    """Many equal steps of an allocation and its free, on a floor that grows."""
    log = EventLog()
    at = Step(log)
    for step in range(count):
        log.marks.append(Mark(f"step {step}", len(log), step * MS))
        log.append(ALLOC, "cpu", 0x1000 + step, 256, step * MS, at.loss)
        temporary = log.append(ALLOC, "cpu", 1, 4096, step * MS + 1, at.forward)
        log.append(FREE, "cpu", 1, 4096, step * MS + 2, at.forward)
        assert log.pair[temporary] == temporary + 1
    log.sources["train.py"] = SOURCE
    return Recording(log)


KINDS = {
    "training": training,
    "empty": empty,
    "one event": one_event,
    "only start": only_start,
    "nothing allocated": nothing_allocated,
    "no stacks": no_stacks,
    "two devices": two_devices,
    "hostile": hostile,
    "dropped": dropped,
    "steps": steps,
}


SCRIPT = re.compile(r"<script type=\"application/octet-stream\" class=\"tl-data\">(.*?)</script>")


def revived(data: dict[str, Any]) -> Any:
    """A list of a page's data as integers: it has the change from each to the next."""
    return [*accumulate(data["changes"])] if data.keys() == {"changes"} else data


def data_of(page: str) -> list[dict[str, Any]]:
    """The data for the scripts of a page, each of one device."""
    texts = (zlib.decompress(base64.b64decode(found)) for found in SCRIPT.findall(page))
    return [json.loads(text, object_hook=revived) for text in texts]
