"""Names of blocks where a census says less than what made them."""

from tensorlens.frameworks.host import name_blocks
from tensorlens.records import ALLOC, START, Context, EventLog, Label


class Census:
    """Names by address."""

    def __init__(self, **names):
        self._names = {int(address[1:]): Label(*name) for address, name in names.items()}

    def at(self, address, size):
        return self._names.get(address)


def named(*found):
    """Return the names in a log of blocks 1 and 2, made by an operator, and 3, there before."""
    log = EventLog()
    made = Context(op="aten::linear")
    log.append(START, "cpu", 3, 8, 0)
    log.append(ALLOC, "cpu", 1, 8, 1, -1, made)
    log.append(ALLOC, "cpu", 2, 8, 2, -1, made)
    name_blocks(log, (), [(census, range(3)) for census in found])
    return [event.label and event.label.name for event in log]


def test_unheld_tensor_is_named_by_its_operator():
    census = Census(
        a1=("made at train.py:3 in step", "other"),
        a2=("<cell>.cell_contents[0]", "other"),
        a3=("made at train.py:1", "other"),
    )
    assert named(census) == ["made at train.py:1", None, None]


def test_a_later_name_is_taken_unless_it_says_less():
    early = Census(a1=("out", "other"), a2=("h", "activation"), a3=("w", "parameter"))
    late = Census(a1=("kept", "other"), a2=("step(): h", "other"), a3=("fc.weight", "parameter"))
    assert named(early, late) == ["fc.weight", "out", "h"]
    saved = Census(a1=("made at train.py:3 in step", "activation"))
    assert named(saved) == [None, "made at train.py:3 in step", None]
