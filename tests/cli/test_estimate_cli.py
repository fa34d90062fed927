"""``tensorlens estimate``: what it asks, what it prints and its exit codes; nothing is run."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "unit" / "render"))
import rendered_estimates as estimates
from rendered_estimates import MIB

from tensorlens import MaxBatch, Recording, TensorlensError, load
from tensorlens.cli import main
from tensorlens.planning import estimate as estimating
from tensorlens.planning.estimate import LargestBatch
from tensorlens.units import parse_bytes

_CAPACITIES = {"large": "1GiB", "tight": "446MiB", "small": "400MiB"}
_PEAKS = "33.50 MiB 40.00 MiB 446.00 MiB"


class Asked:
    """Stands for the functions that run a program, and keeps what they were asked."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.failure: TensorlensError | None = None

    def estimate(self, program, **options):
        self.calls.append((program, options))
        if self.failure is not None:
            raise self.failure
        capacity = None if options["capacity"] is None else parse_bytes(options["capacity"])
        return estimates.training(capacity=capacity, program=program)

    def estimate_cards(self, program, cards, **options):
        return {card: self.estimate(program, **options, card=card) for card in cards}

    def max_batch(self, program, **options):
        self.calls.append((program, options))
        capacity = parse_bytes(options["capacity"] or _CAPACITIES[options["card"]])
        batch = 2 if capacity >= 446 * MIB else 0
        largest = LargestBatch(batch, capacity, 3 if batch else 1, 446 * MIB)
        answer = replace(estimates.training(capacity=capacity), largest=largest)
        return MaxBatch(answer, {batch: answer})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Asked:
    found = Asked()
    for name in ("estimate", "estimate_cards", "max_batch"):
        monkeypatch.setattr(estimating, name, getattr(found, name))
    monkeypatch.chdir(tmp_path)
    return found


def run(*words: str) -> int:
    try:
        return main(["estimate", *words])
    except SystemExit as ending:
        return int(ending.code or 0)


def test_estimate_is_printed(asked: Asked, capsys) -> None:
    assert run("train:make_step") == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("Estimate for cuda:0: train:make_step\n  fits into the card's")
    assert printed.err == ""
    assert asked.calls == [
        (
            "train:make_step",
            {
                **{"device": "cuda", "steps": 2, "capacity": None, "settings": None},
                **{"arguments": {}, "world_size": 1, "script_args": (), "card": None},
            },
        )
    ]


def test_options_may_follow_a_function(asked: Asked) -> None:
    words = "--steps 3 train.py:make_step --card h100 --capacity 24GiB --set batch=32"
    more = "--set lr=1e-3 --set kind=small --set on=true --world-size 8 --alloc-conf a:b -- --x 1"
    assert run(*words.split(), *more.split()) == 0
    ((program, options),) = asked.calls
    assert program == "train.py:make_step"
    assert options["arguments"] == {"batch": 32, "lr": 1e-3, "kind": "small", "on": True}
    assert (options["card"], options["capacity"], options["steps"]) == ("h100", "24GiB", 3)
    assert (options["world_size"], options["settings"]) == (8, "a:b")
    assert options["script_args"] == ("--x", "1")


def test_a_script_is_given_all_that_follows_it(asked: Asked) -> None:
    assert run("--steps", "3", "train.py", "--steps", "9", "--card", "x", "--", "y") == 0
    ((program, options),) = asked.calls
    assert (program, options["steps"], options["card"]) == ("train.py", 3, None)
    assert options["script_args"] == ("--steps", "9", "--card", "x", "--", "y")


def test_options_that_a_script_does_not_name_are_noted(asked: Asked, capsys) -> None:
    Path("train.py").write_text("parser.add_argument('--steps')\n")
    assert run("train.py", "--steps", "9", "--card", "x") == 0
    assert capsys.readouterr().err == (
        "tensorlens: note: --card after train.py goes to train.py; for tensorlens, put it before"
        " train.py\n"
    )


# 446 MiB are needed, 588 at most
@pytest.mark.parametrize(
    ("capacity", "code", "said"),
    [
        ("588MiB", 0, ""),
        ("446MiB", 0, "tensorlens: tight in 446.00 MiB: likely needs 446.00 MiB, 0 B to spare"),
        ("445MiB", 3, ""),
    ],
)
def test_the_exit_code_tells_whether_it_fits(
    asked: Asked, capsys, capacity: str, code: int, said: str
) -> None:
    assert run("train:make_step", "--capacity", capacity) == code
    printed = capsys.readouterr()
    assert printed.err.startswith(said)
    assert bool(printed.err) == bool(said)


def test_files_are_written_in_place_of_the_tables(asked: Asked, capsys) -> None:
    words = ("-o", "e.json", "-o", "e.html", "-o", "e.tlens", "-o", "e.txt")
    assert run("train:make_step", *words) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[0].startswith("tensorlens: wrote e.json: fits into the card's")
    assert len(printed.err.splitlines()) == 4
    assert isinstance(load("e.tlens"), Recording)
    assert run("train:make_step", "-o", "e.json") == 2
    assert capsys.readouterr().err == (
        "tensorlens: error: e.json exists: choose another name, or overwrite it with -f\n"
    )
    assert run("train:make_step", "-f", "-o", "e.json") == 0


def test_explain_option(asked: Asked, capsys) -> None:
    assert run("train:make_step", "--explain", "-o", "e.json") == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("Estimate for cuda:0: train:make_step. It fits")
    assert printed.out.endswith("required on card\n")
    assert Path("e.json").exists()


def test_several_cards_are_one_table(asked: Asked, capsys) -> None:
    assert run("train:make_step", "--card", "a100", "--card", "l4") == 0
    assert capsys.readouterr().out.startswith("Estimates for 2 cards: train:make_step\n")
    assert [options["card"] for _, options in asked.calls] == ["a100", "l4"]
    assert run("train:make_step", "--card", "a", "--card", "b", "--capacity", "1MiB") == 3
    assert run("train:make_step", "--card", "a", "--card", "b", "-o", "e.json") == 2


def test_the_largest_batch_of_several_cards_is_one_table(asked: Asked, capsys) -> None:
    cards = [word for name in _CAPACITIES for word in ("--card", name)]
    assert run("train:make_step", "--max-batch", *cards) == 0
    heading, titles, _, *rows = capsys.readouterr().out.splitlines()
    assert heading.startswith("Largest batches for 3 cards")
    assert " ".join(titles.split()) == "Card Capacity Largest batch Allocated Reserved Needed"
    # of a batch of 2, which needs 446 MiB, 588 at most; of the smallest where that has no room
    assert [row.split("HBM3")[1].split() for row in rows] == [
        f"1.00 GiB 2 {_PEAKS} fits".split(),
        f"446.00 MiB 2 {_PEAKS} tight".split(),
        f"400.00 MiB 0 {_PEAKS} a batch of 1 does not fit".split(),
    ]
    assert run("train:make_step", "--max-batch", "--card", "small", "--card", "small") == 3


@pytest.mark.parametrize(
    ("capacity", "said"),
    [
        ("1GiB", "the largest batch that fits into 1.00 GiB is 2; 3 would need 446.00 MiB"),
        (
            "500MiB",
            "the largest batch that likely fits into 500.00 MiB is 2, which is tight; 3 would"
            " likely need 446.00 MiB",
        ),
        ("400MiB", "not even a batch of 1 fits into 400.00 MiB: it needs 446.00 MiB"),
    ],
)
def test_the_largest_batch_is_in_the_file_and_shown_again(
    asked: Asked, capsys, capacity: str, said: str
) -> None:
    words = ("train:make_step", "--max-batch", "--capacity", capacity)
    code = run(*words)
    printed = capsys.readouterr().out
    assert printed.startswith(f"{said}\n\nEstimate for")
    assert run(*words, "-o", "e.json", "-o", "e.html") == code
    assert capsys.readouterr().err.startswith(f"tensorlens: {said}\n")
    assert main(["show", "e.json"]) == 0
    assert capsys.readouterr().out == printed
    assert f">{said}<" in Path("e.html").read_text()
    found = json.loads(Path("e.json").read_text())["largest"]
    nbytes = parse_bytes(capacity)
    fits = code == 0
    assert found == {
        "batch": 2 if fits else 0,
        "capacity": nbytes,
        "next_batch": 3 if fits else 1,
        "next_needed": 446 * MIB,
        "is_limit": False,
        "is_uneven": False,
        "is_sure": False,
    }
    assert run(*words, "--explain") == code
    assert capsys.readouterr().out.startswith(f"{said}\n\nEstimate for cuda:0")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "give a PROGRAM: module:function, file.py:function or a script"),
        ("train:f extra", "'extra' after train:f: what is given to it comes after --"),
        ("train:f --set batch", "'batch': give NAME=VALUE, as in --set batch=32"),
        ("train:f --set 1=2", "'1=2': give NAME=VALUE, as in --set batch=32"),
        ("train:f --max-batch", "--max-batch needs a --capacity, or a --card"),
        ("--max-batch --capacity 1GiB train.py", "--max-batch needs a function"),
        ("train:f --card a --card b -o e.json", "-o writes the estimate for one card"),
        ("train:f --max-batch --device cpu", "--max-batch is for --device cuda"),
        ("train:f -o e.xyz", "cannot tell the format of 'e.xyz'"),
        ("train:f --steps x", "argument --steps: invalid int value: 'x'"),
    ],
)
def test_bad_usage_is_one_line(asked: Asked, capsys, words: str, message: str) -> None:
    assert run(*words.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert asked.calls == []


def test_a_program_that_fails_tells_its_own_story_first(asked: Asked, capsys) -> None:
    asked.failure = TensorlensError("the program failed: ValueError: no")
    asked.failure.details = "  File train.py, line 3\n"
    assert run("train:make_step") == 1
    assert capsys.readouterr().err == (
        "  File train.py, line 3\ntensorlens: error: the program failed: ValueError: no\n"
    )
