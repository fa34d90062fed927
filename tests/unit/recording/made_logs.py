"""Logs made by hand, and answers found the slow way."""

from __future__ import annotations

from collections import Counter

from tensorlens import Recording
from tensorlens.records import ALLOC, FREE, START, Context, EventLog, Frame

TORCH = "/env/site-packages/torch"
CALL = Frame(f"{TORCH}/nn/modules/module.py", 1787, "Module._call_impl", False)
ENGINE = Frame(f"{TORCH}/autograd/graph.py", 869, "_engine_run_backward", False)
OPTIMIZER = Frame(
    f"{TORCH}/optim/optimizer.py",
    516,
    "Optimizer.profile_hook_step.<locals>.wrapper",
    False,
)
FUNCTIONAL = Frame(f"{TORCH}/nn/functional.py", 90, "linear", False)


def user(lineno: int, function: str = "step", file: str = "/me/train.py") -> Frame:
    return Frame(file, lineno, function)


class Made:
    """A log that grows by short calls; every call is one event, a nanosecond after the last."""

    def __init__(self, device: str = "cpu") -> None:
        self.log = EventLog()
        self.device = device

    def stack(self, *frames: Frame | str) -> int:
        """Return the stack of frames, outermost first; a text is a call of the module there."""
        node = -1
        for frame in frames:
            path = frame if isinstance(frame, str) else None
            node = self.log.stacks.push(node, CALL if isinstance(frame, str) else frame, path)
        return node

    def start(self, size: int, stack: int = -1, context: Context | None = None) -> int:
        address = 1 + len(self.log)
        return self.log.append(START, self.device, address, size, 0, stack, context)

    def alloc(
        self,
        size: int,
        stack: int = -1,
        context: Context | None = None,
        device: str | None = None,
    ) -> int:
        row = len(self.log)
        return self.log.append(ALLOC, device or self.device, 1 + row, size, row, stack, context)

    def free(self, row: int, stack: int = -1, context: Context | None = None) -> int:
        log = self.log
        device = log.devices[log.device[row]]
        now = len(log)
        return log.append(FREE, device, log.address[row], log.size[row], now, stack, context)

    @property
    def recording(self) -> Recording:
        return Recording(self.log)


def slowly_resident(log: EventLog, device: str, row: int) -> list[int]:
    """Return the rows of the blocks there after a row, by playing the events one by one."""
    there: dict[tuple[int, int], int] = {}
    started = [each for each in range(len(log)) if log.kind[each] == START]
    for each in range(max(row + 1, len(started))):
        key = log.device[each], log.address[each]
        if log.kind[each] in (START, ALLOC):
            there[key] = each
        elif log.kind[each] == FREE:
            there.pop(key, None)
    return sorted(each for each in there.values() if log.devices[log.device[each]] == device)


def slowly_level(log: EventLog, device: str, row: int) -> int:
    return sum(log.size[each] for each in slowly_resident(log, device, row))


def slowly_peak(log: EventLog, device: str) -> tuple[int, int]:
    """Return the highest bytes and the first row after which it was so."""
    best, at = slowly_level(log, device, -1), -1
    for row in range(len(log)):
        level = slowly_level(log, device, row)
        if level > best:
            best, at = level, row
    return best, at


def sums(pairs: list[tuple[object, int]]) -> dict[object, int]:
    """Return the sums by key of ``(key, bytes)``."""
    total: Counter[object] = Counter()
    for key, nbytes in pairs:
        total[key] += nbytes
    return dict(total)
