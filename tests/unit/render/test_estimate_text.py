import re
from dataclasses import replace

import pytest
import rendered_estimates as estimates
from rendered_estimates import MIB, PEAK

from tensorlens import Recording
from tensorlens.planning import find_card
from tensorlens.planning.estimate import LargestBatch, Range, present, requirement
from tensorlens.records import ALLOC, EventLog, Frame
from tensorlens.render import TextRenderer, View, width
from tensorlens.units import format_bytes

# every figure follows from the table at the head of rendered_estimates
TRAINING_80 = """\
Estimate for cuda:0: train.py:make_step
  fits into 1.00 GiB: needs 446.00 MiB (334.00 MiB to 588.00 MiB), 578.00 MiB to
    spare
  peak      33.50 MiB in backward of step 2, at train.py:2 in step, in module
            fc1, for aten::mm
  line      train.py:2, 10.00 MiB (29.9 %): h = net(x)
  tensor    fc1.weight, 4.00 MiB (11.9 %), parameter
  card      NVIDIA H100 80GB HBM3, 79.19 GiB, compute capability 9.0
  versions  torch 2.13.0

     On the card         Likeliest        Bytes    At least     At most
  ─────────────────────────────────────────────────────────────────────
     minimum that fits   36.00 MiB   37,748,736   34.00 MiB   38.00 MiB
  +  outside of torch   410.00 MiB  429,916,160  300.00 MiB  550.00 MiB
  ─────────────────────────────────────────────────────────────────────
  =  required on card   446.00 MiB  467,664,896  334.00 MiB  588.00 MiB
  Left out to fit 80 characters: Meaning. A wider terminal, .html and .csv show
    it.

  As tools show it       Size       Bytes
  ───────────────────────────────────────
  peak allocated    33.50 MiB  35,127,296
  peak reserved     40.00 MiB  41,943,040
  allocator total   50.00 MiB  52,428,800
  The allocator total may be 36.00 MiB to 100.40 MiB. It has unused cache, which
    goes back when the card is full.
  Left out to fit 80 characters: Meaning. A wider terminal, .html and .csv show
    it.

At the peak, 33.50 MiB (35,127,296 B)
  Component                       Size   Share
  ────────────────────────────────────────────
  parameters                  4.00 MiB  11.9 %
  gradients                   4.00 MiB  11.9 %
  optimizer state             8.00 MiB  23.9 %
  activations                 2.00 MiB   6.0 %
  gradients of activations    2.00 MiB   6.0 %
  inputs                      1.00 MiB   3.0 %
  temporaries of operators    4.00 MiB  11.9 %
  cuBLAS workspace            8.00 MiB  23.9 %
  remainders of blocks      512.00 KiB   1.5 %

       Size   Share  Line                        Source
  ───────────────────────────────────────────────────────────────
  10.00 MiB  29.9 %  train.py:2                  h = net(x)
   8.00 MiB  23.9 %  train.py:5                  optimizer.step()
   5.50 MiB  16.4 %  (no line known)
   2.00 MiB   6.0 %  train.py:3                  loss = h.sum()
   8.00 MiB  23.9 %  cuBLAS workspace (library)

       Size   Share  Module
  ─────────────────────────────────────────────
  22.00 MiB  65.7 %  fc1
   8.00 MiB  23.9 %  cuBLAS workspace (library)
   3.50 MiB  10.4 %  (no module known)

  Step         Peak  Peak reserved  At its end  Reserved then
  ───────────────────────────────────────────────────────────
  setup    5.00 MiB      20.00 MiB    5.00 MiB      20.00 MiB
  step 1  25.00 MiB      40.00 MiB   25.00 MiB      40.00 MiB
  step 2  33.50 MiB      40.00 MiB   25.00 MiB      40.00 MiB

Other memory at the peak
  Term              Size
  ──────────────────────────
  cuBLAS workspace  8.00 MiB
      one handle on this card

Outside of torch's memory
  Term            Size
  ─────────────────────────────────────────────────────
  CUDA context    400.00 MiB (300.00 MiB to 500.00 MiB)
      measured on cards like it
  loaded kernels  10.00 MiB (0 B to 50.00 MiB)
      loaded when first used
"""
MEANINGS = {
    "peak allocated": "torch.cuda.max_memory_allocated()",
    "peak reserved": "torch.cuda.max_memory_reserved()",
    "allocator total": "reserved + kernels: nvidia-smi less context",
    "minimum that fits": "reserved, without unused cache",
    "outside of torch": "CUDA context, loaded kernels",
    "required on card": "decides whether it fits",
}

LEFT_OUT = """\
  Left out to fit 80 characters: Meaning. A wider terminal, .html and .csv show
    it.
"""


def with_meanings(text: str) -> str:
    """A page that has room says of each figure what it is; the longest have 30 and 43 columns."""
    lines = text.replace(LEFT_OUT, "").splitlines(keepends=True)
    for place, line in enumerate(lines):
        for label, meaning in MEANINGS.items():
            if re.match(rf"  ([ +=]  )?{label} +\d", line) and line.count(",") > 1:
                lines[place] = f"{line.rstrip()}  {meaning}\n"
        if line.rstrip().endswith((" At most", " Size       Bytes")):
            lines[place] = f"{line.rstrip()}  Meaning\n"
    rules = [place for place, line in enumerate(lines) if "─" in line]
    for place, longest in zip(rules, (30, 30, 43), strict=False):
        lines[place] = lines[place].rstrip() + "─" * (2 + longest) + "\n"
    return "".join(lines)


TRAINING_120 = (
    with_meanings(TRAINING_80)
    .replace("to\n    spare", "to spare")
    .replace("module\n            fc1", "module fc1")
    .replace("which\n    goes", "which goes")
)

SUM = """\
           Bytes        Size  The sum
  ────────────────────────────────────────────────────────
       4,194,304    4.00 MiB  parameters
  +    4,194,304    4.00 MiB  gradients
  +    8,388,608    8.00 MiB  optimizer state
  +    2,097,152    2.00 MiB  activations
  +    2,097,152    2.00 MiB  gradients of activations
  +    1,048,576    1.00 MiB  inputs
  +    4,194,304    4.00 MiB  temporaries of operators
  +    8,388,608    8.00 MiB  cuBLAS workspace
  +      524,288  512.00 KiB  remainders of blocks
  ────────────────────────────────────────────────────────
  =   35,127,296   33.50 MiB  allocated at the peak
  +    6,815,744    6.50 MiB  held in segments beyond that
  ────────────────────────────────────────────────────────
  =   41,943,040   40.00 MiB  reserved at the peak
  -    4,194,304    4.00 MiB  cached, returned when needed
  ────────────────────────────────────────────────────────
  =   37,748,736   36.00 MiB  minimum that fits
  +  419,430,400  400.00 MiB  CUDA context
  +   10,485,760   10.00 MiB  loaded kernels
  ────────────────────────────────────────────────────────
  =  467,664,896  446.00 MiB  required on card
"""


def text_of(kind: str, columns: int = 80, encoding: str = "utf-8", **view) -> str:
    renderer = TextRenderer(columns, encoding, View(**view) if view else None)
    return renderer.render(estimates.ALL[kind]())


def explained(kind: str, columns: int = 80, encoding: str = "utf-8") -> str:
    return TextRenderer(columns, encoding).render_blocks(present.explanation(estimates.ALL[kind]()))


def flat(text: str) -> str:
    """The text without its line breaks."""
    return " ".join(text.split())


@pytest.mark.parametrize(("columns", "text"), [(80, TRAINING_80), (120, TRAINING_120)])
def test_a_training_step(columns: int, text: str) -> None:
    assert text_of("training", columns) == text


def test_estimate_prints_itself() -> None:
    assert str(estimates.training()) == text_of("training", 120)
    assert estimates.training().explain() == explained("training", 120)


@pytest.mark.parametrize("of", [text_of, explained])
@pytest.mark.parametrize("kind", estimates.ALL)
@pytest.mark.parametrize("columns", [80, 120, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "cp1252"])
def test_no_line_is_wider_than_the_page(of, kind: str, columns: int, encoding: str) -> None:
    text = of(kind, columns, encoding)
    text.encode(encoding)
    if kind != "hostile":
        assert [line for line in text.splitlines() if width(line) > columns] == []
    assert not set(text) & set("\x1b\u202e\r\t")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            "tight",
            "tight in 500.00 MiB: likely needs 446.00 MiB, 54.00 MiB to spare, but may need up to"
            " 588.00 MiB",
        ),
        (
            "too large",
            "does not fit into 400.00 MiB: needs 446.00 MiB (334.00 MiB to 588.00 MiB), 46.00 MiB"
            " short",
        ),
        ("unasked", "fits into the card's 79.19 GiB: needs 446.00 MiB (334.00 MiB to 588.00 MiB)"),
    ],
)
def test_the_answer_comes_first(kind: str, words: str) -> None:
    _, _, after = flat(text_of(kind).split("\n\n")[0]).partition(" ")
    assert words in after
    assert words in flat(explained(kind).split("\n\n")[0])


def test_warnings_have_their_lines() -> None:
    assert text_of("warned").endswith(
        "\nWarnings\n"
        "  a tensor without data was asked for its value: 0 was answered (train.py:3 in\n"
        "    step)\n"
        "  a kernel of one's own is not known\n"
    )


def test_settings_of_the_allocator_are_told() -> None:
    assert "  allocator  expandable_segments:True\n" in text_of("unasked")


def test_few_lines_are_named_unless_all_are_wanted() -> None:
    log = EventLog()
    for number in range(1, 8):
        stack = log.stacks.add([Frame("train.py", number, "step")])
        log.append(ALLOC, "cuda:0", number << 30, number * MIB, 0, stack)
    # 1 + ... + 7 = 28, and the two smallest are not among the five
    whole = Range.exactly(28 * MIB)
    made = estimates.training(recording=Recording(log), peak_row=6, allocated=whole)
    text = TextRenderer(80, "utf-8").render(made)
    assert "  3.00 MiB  10.7 %  train.py:3\n  … 2 more lines, 3.00 MiB\n" in text
    text = TextRenderer(80, "utf-8", View(top=None)).render(made)
    assert "  1.00 MiB   3.6 %  train.py:1\n" in text


def test_several_cards_are_one_table() -> None:
    several = [estimates.training(), estimates.too_large()]
    text = (
        "Estimates for 2 cards: train.py:make_step\n"
        "  Card              Capacity  Allocated   Reserved      Needed\n"
        "  ──────────────────────────────────────────────────────────────────────────\n"
        "  H100 80GB HBM3    1.00 GiB  33.50 MiB  40.00 MiB  446.00 MiB  fits\n"
        "  H100 80GB HBM3  400.00 MiB  33.50 MiB  40.00 MiB  446.00 MiB  does not fit\n"
    )
    assert TextRenderer(80, "utf-8").render_blocks(present.cards(several)) == text
    narrow = TextRenderer(70, "ascii").render_blocks(present.cards(several))
    assert [line for line in narrow.splitlines() if len(line) > 74] == []


def test_the_sum_can_be_checked() -> None:
    text = explained("training")
    assert text.endswith("\n\n" + SUM)
    total = 0
    for sign, digits in re.findall(r"^  ([-+= ]) +([\d,]+)  ", SUM, re.M):
        nbytes = int(digits.replace(",", ""))
        if sign == "=":
            assert nbytes == total
        total = nbytes if sign == "=" else total + (-nbytes if sign == "-" else nbytes)
    assert total == 446 * MIB


@pytest.mark.parametrize("kind", estimates.ALL)
def test_every_bound_of_what_the_card_must_have_adds_up(kind: str) -> None:
    figures = [(each.sign, each.nbytes) for each in requirement(estimates.ALL[kind]())]
    if figures:
        (_, minimum), (plus, outside), (equals, required) = figures
        assert (plus, equals) == ("+", "=")
        assert minimum + outside == required


def test_library_workspace_is_charged_to_no_line() -> None:
    text = text_of("training")
    assert "  10.00 MiB  29.9 %  train.py:2                  h = net(x)\n" in text
    assert "   8.00 MiB  23.9 %  cuBLAS workspace (library)\n" in text


def test_words_for_what_the_model_takes() -> None:
    text = flat(explained("training"))
    assert (
        "The most is allocated in backward of step 2, at train.py:2 in step, in module fc1, for"
        " aten::mm: 33.50 MiB (35,127,296 B)." in text
    )
    assert "Parameters: 4.00 MiB (4,194,304 B) in 1 block." in text
    assert (
        "Gradients of parameters: 4.00 MiB (4,194,304 B) in 1 block, 1.00 times the parameters."
        in text
    )
    # Adam's two slots are as large again, each
    assert "Optimizer state: 8.00 MiB (8,388,608 B) in 2 blocks, 2.00 times the parameters." in text


def test_words_for_what_the_batch_takes() -> None:
    text = flat(explained("training"))
    assert (
        "Activations, which forward keeps for backward: 2.00 MiB (2,097,152 B) in 1 block,"
        " 256.00 KiB for each of the 8 items of the batch." in text
    )
    assert "Inputs: 1.00 MiB (1,048,576 B) in 1 block, 128.00 KiB for each of the 8 items" in text
    # 4 + 4 + 8 + 1 of what stays, with 2 / 8 and with twice 2 of activations
    assert "the activations of one item make 17.25 MiB" in text
    assert "for their gradients, makes 21.00 MiB" in text


def test_words_for_what_no_tensor_is() -> None:
    text = flat(explained("training"))
    assert "CUDA context: 400.00 MiB (300.00 MiB to 500.00 MiB). Measured on cards like it." in text
    assert "cuBLAS workspace: 8.00 MiB. One handle on this card." in text


def test_without_a_batch_nothing_is_said_of_items() -> None:
    text = explained("unasked")
    assert "item" not in text
    assert text.endswith(SUM)


def test_roles_absent_at_the_peak_show_their_highest() -> None:
    # after row 4, in forward of step 1: parameters, the batch, workspace and activation
    made = estimates.training(peak_row=4, allocated=Range.exactly(15 * MIB))
    text = flat(TextRenderer(80, "utf-8").render_blocks(present.explanation(made)))
    assert "Gradients: none then; 4.00 MiB at their most, at another moment." in text
    assert "Optimizer state: none then; 8.00 MiB at their most, at another moment." in text


def test_blocks_that_do_not_add_up_are_told() -> None:
    made = estimates.training(allocated=Range.exactly(PEAK + 512))
    text = TextRenderer(80, "utf-8").render_blocks(present.explanation(made))
    assert "  +          512       512 B  unattributed\n" in text


def test_a_total_is_never_below_the_minimum_and_cache_is_told_only_where_there_is_some():
    full = estimates.training(least_capacity=Range(40 * MIB, 40 * MIB, 42 * MIB))
    assert full.lower == 40 * MIB
    text = " ".join(str(full).split())
    assert "may be 40.00 MiB to 100.40 MiB. At" in text
    assert "unused cache, which goes back" not in text


def test_a_card_that_nobody_named_is_assumed():
    said = "compute capability 8.0 (assumed; name yours with --card, card=...)"
    assert said in " ".join(str(estimates.training(card=find_card())).split())
    assert "assumed" not in str(estimates.training(card=find_card("a100-80gb")))


def test_a_smaller_batch_that_may_not_fit_is_told():
    found = LargestBatch(8, 4096 * MIB, 9, 5000 * MIB, is_uneven=True)
    text = TextRenderer(200, "utf-8").render(replace(estimates.training(), largest=found))
    assert "9 would need 4.88 GiB; need does not rise with every batch: a smaller one may" in text


def test_a_batch_that_may_need_its_upper_bound_is_told_so():
    found = LargestBatch(8, 4096 * MIB, 9, 5000 * MIB, is_sure=True)
    estimate = replace(estimates.training(), framework="tensorflow", largest=found)
    more = 5000 * MIB - estimate.needed.high
    text = TextRenderer(200, "utf-8").render(estimate)
    assert f"9 may need up to 4.88 GiB, {format_bytes(more)} more: TensorFlow" in text
