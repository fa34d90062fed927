import pytest
import rendered_recordings as recordings
from rendered_recordings import KIB

from tensorlens import Recording
from tensorlens.errors import UsageError
from tensorlens.recording import moment_layout
from tensorlens.records import ALLOC, FREE, START, Context, EventLog, Frame, Label, Mark, Origin
from tensorlens.render import TextRenderer, View, width

# every figure follows from the table at the head of rendered_recordings
TRAINING_80 = """\
Memory over time
  cpu  torch CPU allocator
  7 allocations and frees in 7.00 ms; 3 marks
  note: stacks are of Python alone

cpu  peak 268.00 KiB (274,432 B) in 5 blocks, after 3.00 ms, in backward of
    train.py:2, after "backward"
  line    train.py:2, 140.00 KiB (52.2 %): h = net(x)
  tensor  fc1.weight, 100.00 KiB (37.3 %), parameter

  Role              Size   Share
  ──────────────────────────────
  parameter   100.00 KiB  37.3 %
  gradient    100.00 KiB  37.3 %
  activation   48.00 KiB  17.9 %
  input        20.00 KiB   7.5 %

        Size   Share  Line                  Source
  ────────────────────────────────────────────────────────
  140.00 KiB  52.2 %  train.py:2            h = net(x)
  120.00 KiB  44.8 %  before the recording
    8.00 KiB   3.0 %  train.py:3            loss = h.sum()

  Name                     Role              Size      Age  Line
  ────────────────────────────────────────────────────────────────────
  fc1.weight               parameter   100.00 KiB   before  before
  fc1.weight.grad          gradient    100.00 KiB     0 ns  train.py:2
  fc1: aten::addmm         activation   40.00 KiB  2.00 ms  train.py:2
  step(): x                input        20.00 KiB   before  before
  aten::sum at train.py:3  activation    8.00 KiB  1.00 ms  train.py:3

  reserved: not recorded (on the CPU the process's resident set)
  churn: 178.00 KiB handed out in 4 allocations, 0.7 times the peak; most by
    train.py:2 (140.00 KiB)

cpu  backward memory, by the forward line that caused it: 100.00 KiB
  Handed out  Left after  Most at once  Line        Source
  ────────────────────────────────────────────────────────────
  100.00 KiB  100.00 KiB    100.00 KiB  train.py:2  h = net(x)

Growth from "forward" to "end": +100.00 KiB
       Change  Blocks  Role      Line        Source
  ─────────────────────────────────────────────────────
  +100.00 KiB      +1  gradient  train.py:2  h = net(x)
"""
TRAINING_120 = (
    TRAINING_80.replace("backward of\n    ", "backward of ")
    .replace("allocator\n    counted", "allocator counted")
    .replace("most by\n    train.py", "most by train.py")
)


def text_of(recording, limit: int = 80, **view) -> str:
    chosen = View(**view) if view else None
    return TextRenderer(width=limit, encoding="utf-8", view=chosen).render(recording)


@pytest.mark.parametrize(("limit", "text"), [(80, TRAINING_80), (120, TRAINING_120)])
def test_a_training_step(limit: int, text: str) -> None:
    assert text_of(recordings.training(), limit) == text


def test_recording_prints_itself() -> None:
    assert str(recordings.training()) == text_of(recordings.training(), 120)


@pytest.mark.parametrize("limit", [40, 80, 120, 200])
@pytest.mark.parametrize("kind", recordings.KINDS)
@pytest.mark.parametrize("view", [{}, {"top": 2, "verbose": True}, {"top": None}, {"top": 0}])
def test_text_is_clean(kind: str, limit: int, view: dict) -> None:
    text = text_of(recordings.KINDS[kind](), limit, **view)
    assert text.startswith("Memory over time") and text.endswith("\n")
    for line in text.splitlines():
        assert line == line.rstrip()
        assert not line or line.isprintable()
        assert limit < 80 or width(line) <= limit


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
@pytest.mark.parametrize("kind", recordings.KINDS)
def test_recording_in_narrow_encoding(kind: str, encoding: str) -> None:
    TextRenderer(width=80, encoding=encoding).render(recordings.KINDS[kind]()).encode(encoding)


def test_empty_recording_text() -> None:
    assert text_of(recordings.empty()) == "Memory over time\n  no allocations\n"


def test_unknown_figures_have_reasons() -> None:
    text = text_of(recordings.one_event())
    assert "cpu  peak 512 B in 1 block, event 0\n" in text
    assert "  By line: not available (no block has a Python stack)\n" in text
    assert "reserved: not recorded (on the CPU the process's resident set)" in text


def test_a_peak_that_is_reached_again_is_the_first() -> None:
    log = EventLog()
    for time in (1, 3, 5):
        log.append(ALLOC, "cpu", 64, 512, time)
        log.append(FREE, "cpu", 64, 512, time + 1)
    text = text_of(Recording(log, Origin(source={"cpu": "torch CPU allocator"})), 120)
    first = "after 1 ns; reached 3 times, this is the first"
    assert f"cpu  peak 512 B in 1 block, {first}\n" in text


def test_blocks_without_a_line_from_before_and_from_later() -> None:
    log = EventLog()
    log.append(START, "cpu", 64, 1024, 0)
    log.append(ALLOC, "cpu", 2048, 512, 1, log.stacks.add([Frame("train.py", 2, "step")]))
    log.append(ALLOC, "cpu", 4096, 256, 2)
    text = text_of(Recording(log, Origin(source={"cpu": "torch CPU allocator"})), 120)
    assert "  1.25 KiB  71.4 %  before the recording, or no line known\n" in text


def test_the_start_and_what_was_dropped() -> None:
    assert "cpu  peak 512 B in 2 blocks, at the start\n" in text_of(recordings.only_start())
    text = text_of(recordings.dropped(), 120)
    assert (
        "  2 allocations and frees in the last 2.00 ms of 9.00 ms; 1,234 earlier ones dropped\n"
        in text
    )
    when = "after 2.00 ms, before the first event that was kept"
    assert f"cpu  peak 510 B in 2 blocks, {when}\n" in text
    # 20 B handed out, at most 35 B resident
    assert (
        "churn of the events that were kept: 20 B handed out in 1 allocation, 0.6 times their"
        in text
    )
    assert "  no allocations\n" in text_of(recordings.only_start())


def test_a_free_alone_is_no_allocation() -> None:
    log = EventLog()
    log.append(START, "cpu", 64, 512, 0)
    log.append(FREE, "cpu", 64, 512, 3)
    assert "  1 free in 3 ns\n" in text_of(Recording(log, Origin()), 120)


def test_the_allocators_own_count() -> None:
    text = text_of(recordings.two_devices(), 200)
    # 1.5 MiB were set aside for 1 MiB in a segment of 20 MiB
    assert (
        "  allocated 1.50 MiB (1,572,864 B) as the allocator counts, of it 512.00 KiB remainders"
        " that it did not split off; reserved 20.00 MiB (20,971,520 B) at that instant\n"
        "  at the end 20.00 MiB reserved in 1 segment: 1.50 MiB handed out, 18.50 MiB free"
        " (the largest piece 18.50 MiB), 18.50 MiB of it in segments partly in use\n"
        "  churn: 1.00 MiB handed out in 1 allocation, 1.0 times the peak;"
        " most by train.py:2 (1.00 MiB)\n"
    ) in text


def test_a_failed_request_is_told_first() -> None:
    head, _, _ = text_of(recordings.two_devices(), 200).partition("peak")
    failed = "out of memory: a request failed for 1.00 GiB on cuda:0 at train.py:2, after 4 ns\n"
    assert failed in head


def test_devices_are_chosen_and_the_others_named() -> None:
    text = text_of(recordings.two_devices(), devices=("cuda",))
    assert "\ncuda:0  peak" in text and "\ncpu  peak" not in text
    assert text.endswith("\nNot shown: cpu (peak 4.00 KiB)\n")


def test_equal_blocks_are_one_row_and_the_rest_is_summed() -> None:
    # at the last peak 40 blocks of 256 B and one of 4 KiB
    text = text_of(recordings.steps(), top=1)
    assert "step() at train.py:3 x 40  other  10.00 KiB  39.00 ms  train.py:3\n" in text
    assert "  … 1 more block, 4.00 KiB (all: show --top all, or top=None)\n" in text
    text = text_of(recordings.steps(), top=2)
    assert "  fc1: train.py:2            temporary   4.00 KiB" in text
    assert "more block" not in text
    # 1,000 + 1,001 + ... + 1,019
    assert "… 20 more blocks, 19.72 KiB" in text_of(recordings.no_stacks())


def test_blocks_of_one_line_that_differ_in_size_alone_are_one_row() -> None:
    log = EventLog()
    stack = log.stacks.add([Frame("train.py", 28, "forward")])
    for address, nbytes in enumerate((7 * KIB, KIB, 4 * KIB), 1):
        log.append(ALLOC, "cpu", address, nbytes, address, stack, Context(op="aten::lstm"))
    text = text_of(Recording(log, Origin()))
    # 7 + 1 + 4 KiB
    assert "  aten::lstm at train.py:28 x 3  other  12.00 KiB" in text
    # in the table, and above it as the largest
    assert text.count("aten::lstm") == 2


def test_rows_by_role_and_size() -> None:
    text = text_of(recordings.training(), roles=("activation",))
    assert "fc1.weight" not in text
    # 100 + 100 + 20 KiB in the three others
    assert "  … 3 more blocks, 220.00 KiB (of other roles)\n" in text
    text = text_of(recordings.training(), min_size=30 * KIB)
    assert "  … 2 more blocks, 28.00 KiB (smaller than min_size)\n" in text


@pytest.mark.parametrize("top", [0, 1, 2, 3, 5, 8, None])
@pytest.mark.parametrize("roles", [(), ("activation",), ("gradient", "input")])
@pytest.mark.parametrize("min_size", [0, 20 * KIB, 100 * KIB])
@pytest.mark.parametrize("kind", ["training", "steps", "no stacks"])
def test_shown_and_hidden_add_up(kind: str, top: int | None, roles: tuple, min_size: int) -> None:
    recording = recordings.KINDS[kind]()
    (found,) = moment_layout.moment_layouts(
        recording, View(top=top, roles=roles, min_size=min_size)
    )
    parts = [*found.rows, *found.hidden]
    assert sum(part.nbytes for part in parts) == found.moment.bytes
    assert sum(part.count for part in parts) == len(found.moment.tensors)
    assert top is None or len(found.rows) <= top
    for row in found.rows:
        assert row.first.nbytes >= min_size and (not roles or row.first.role in roles)
    assert sum(row.nbytes for row in found.lines) + (
        found.hidden_lines.nbytes if found.hidden_lines else 0
    ) == sum(found.moment.by_line.values())


def test_verbose_tells_how_each_block_came_to_be() -> None:
    text = text_of(recordings.training(), verbose=True)
    assert (
        "      float32 (160, 160)\n"
        "      made by aten::mm, in fc1, backward\n"
        "      born at train.py:4 in step\n"
        "      counted for train.py:2 in step\n"
    ) in text


@pytest.mark.parametrize(
    ("at", "bytes_", "headline"),
    [
        (
            "3",
            168,
            '(172,032 B) in 4 blocks, after 2.00 ms, in forward at train.py:3, after "forward"',
        ),
        ("backward", 168, None),
        ("forward", 120, "(122,880 B) in 2 blocks, at the start"),
        ("8", 220, '(225,280 B) in 3 blocks, after 7.00 ms, after "backward"'),
    ],
)
def test_text_at_another_instant(at: str, bytes_: int, headline: str | None) -> None:
    (found,) = moment_layout.moment_layouts(recordings.training(), View(at=at))
    assert found.moment.bytes == bytes_ * KIB
    assert not found.is_peak
    assert headline is None or found.headline == f"{bytes_}.00 KiB {headline}"


def test_several_marks_of_a_name() -> None:
    recording = recordings.training()
    recording.log.marks[1:] = [Mark("forward", 4, 0)]
    assert moment_layout.row_of(recording, "forward") == 3
    text = text_of(recording, 120)
    assert 'after 3.00 ms, in backward of train.py:2, after "forward" (2 of 2)\n' in text
    # from 120 to 168 KiB
    assert 'Growth from "forward" (1 of 2) to "forward" (2 of 2): +48.00 KiB\n' in text


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("9", "there is no event 9: the recording has 9, from 0 on"),
        ("nowhere", "the recording has no mark 'nowhere': it has forward, backward, end"),
        ("1" * 30, f"the recording has no mark '{'1' * 30}': it has forward, backward, end"),
    ],
)
def test_text_at_unknown_instant(at: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        text_of(recordings.training(), at=at)
    assert str(caught.value) == message


def test_no_instant_at_all() -> None:
    with pytest.raises(UsageError, match="there is no event 0: the recording has 0"):
        text_of(recordings.empty(), at="0")


def test_a_crowd_of_equal_blocks_is_summed() -> None:
    log = EventLog()
    for number in range(20_500):
        log.append(ALLOC, "cpu", number + 1, 512, number)
    (found,) = moment_layout.moment_layouts(Recording(log), View())
    assert [(row.count, row.nbytes) for row in found.rows] == [(20_000, 20_000 * 512)]
    assert [(each.count, each.nbytes) for each in found.hidden] == [(500, 500 * 512)]
    (found,) = moment_layout.moment_layouts(Recording(log), View(top=None))
    assert [row.count for row in found.rows] == [20_500] and not found.hidden


def test_items_of_one_list_are_one_row_whatever_lines_made_them() -> None:
    log = EventLog()
    for number in range(6):
        stack = log.stacks.add([Frame("train.py", 2 + number % 2, "step")])
        log.append(ALLOC, "cpu", number + 1, 512, number, stack)
        log.name(number, Label(f"history[{number}]", "other"))
    (found,) = moment_layout.moment_layouts(Recording(log), View())
    assert [(row.name, row.count, row.nbytes, row.place) for row in found.rows] == [
        ("history[0..5]", 6, 6 * 512, "2 lines")
    ]


def test_the_rows_follow_the_sizes_whatever_their_number() -> None:
    log = EventLog()
    for number in range(1000):
        log.append(START, "cpu", number + 1, number, 0)
        log.name(number, Label(f"t{number}", "other"))
    log.append(ALLOC, "cpu", 5000, 7, 1)
    log.append(FREE, "cpu", 5000, 7, 2)
    (found,) = moment_layout.moment_layouts(Recording(log), View(top=3))
    assert [row.first.name for row in found.rows] == ["t999", "t998", "t997"]
    # 0 + 1 + ... + 996, and the 7
    assert [(each.count, each.nbytes) for each in found.hidden] == [(998, 996 * 997 // 2 + 7)]


def test_a_function_that_many_long_names_begin_with_is_left_out_where_it_is_narrow() -> None:
    log = EventLog()
    names = [f"Trainer.training_step(): model.encoder.layer.{n}.attention.weight" for n in range(2)]
    for number, name in enumerate([*names, "model.weight"]):
        log.append(START, "cpu", number + 1, 8 - number, 0)
        log.name(number, Label(name, "parameter"))
    text = text_of(Recording(log), 80)
    assert "\n  Trainer… model.encoder.layer.1.attention.weight  parameter   7 B  before\n" in text
    assert f"\n      {names[1]}\n" in text_of(Recording(log), 80, verbose=True)
