from tensorlens.records import (
    ALLOC,
    FREE,
    GRAPH_CALL,
    START,
    Context,
    EventLog,
    Frame,
    Label,
    Mark,
    merge_logs,
)


def frame(name, lineno):
    return Frame(name, lineno, "step")


def host():
    log = EventLog()
    outer = log.stacks.add([frame("a.py", 1)])
    inner = log.stacks.push(outer, frame("a.py", 2), "net.fc")
    log.append(START, "cpu", 0x10, 100, 0, outer)
    log.append(ALLOC, "cpu", 0x20, 30, 5, inner, Context(op="aten::mm"))
    log.append(FREE, "cpu", 0x20, 30, 20, outer, Context(node="MmBackward0", forward=inner))
    log.name(0, Label("net.fc.weight", "parameter"))
    log.marks = [Mark("begun", 1, 1), Mark("end", 3, 30)]
    return log


def device():
    log = EventLog()
    stack = log.stacks.add([frame("b.py", 7)])
    log.append(START, "cuda:0", 0x10, 512, 0, stack)
    log.append(ALLOC, "cuda:0", 0x20, 1024, 4, stack)
    log.held = {1: 2048}
    return log


def test_rows_are_in_the_order_of_time_with_what_was_there_first():
    whole = merge_logs([host(), device()], [0, 3])
    assert [(event.device, event.action, event.nbytes, event.time_ns) for event in whole] == [
        ("cpu", "start", 100, 0),
        ("cuda:0", "start", 512, 0),
        ("cpu", "alloc", 30, 5),
        ("cuda:0", "alloc", 1024, 7),
        ("cpu", "free", 30, 20),
    ]


def test_merged_references_are_renumbered():
    whole = merge_logs([device(), host()], [0, 0])
    (free,) = [event for event in whole if event.action == "free"]
    assert whole[free.pair].nbytes == 30 and whole[free.pair].pair == free.row
    assert whole[free.pair].module == "net.fc"
    assert [each.lineno for each in whole.stacks.of(free.context.forward)] == [2, 1]
    start = next(event for event in whole if event.label)
    assert (start.nbytes, start.label.name) == (100, "net.fc.weight")
    assert {whole[row].nbytes: size for row, size in whole.held.items()} == {1024: 2048}


def test_marks_are_placed_by_their_time():
    one, other = host(), device()
    other.marks = [Mark(GRAPH_CALL, 2, 6)]
    whole = merge_logs([one, other], [0, 3])
    # cpu start, cuda:0 start, cpu alloc, cuda:0 alloc, cpu free
    assert whole.marks == [Mark("begun", 2, 1), Mark(GRAPH_CALL, 4, 9), Mark("end", 5, 30)]


def test_merge_of_no_logs():
    assert len(merge_logs([], [])) == 0
    assert len(merge_logs([EventLog()], [0])) == 0
