"""What is estimated and where: each kind of target with each function, card and capacity."""

import subprocess

import pytest
import torch

import tensorlens
from tensorlens.cli import main
from tensorlens.errors import UsageError
from tensorlens.planning import processes
from tests import warm
from tests.card_checks import check_largest_batch


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    monkeypatch.setattr(processes, "interpreter", lambda: warm.python(device=True))


def rows(batch=2):
    """Takes 1 GiB a row, and nothing else."""

    def step():
        torch.zeros(batch, 1 << 28, device="cuda")

    return step


@pytest.fixture(params=["make_step", "module:function"])
def target(request, tmp_path, monkeypatch):
    if request.param == "make_step":
        return rows
    (tmp_path / "program.py").write_text(
        "import torch\n\n"
        "def rows(batch=2):\n"
        "    return lambda: torch.zeros(batch, 1 << 28, device='cuda')\n"
    )
    return f"{tmp_path / 'program.py'}:rows"


def test_largest_batch_is_the_same_by_card_and_by_capacity(target):
    check_largest_batch(target, lowest=12)


def test_the_command_line_finds_the_same_batch(tmp_path, capsys):
    file = tmp_path / "program.py"
    file.write_text(
        "import torch\n\n"
        "def rows(batch):\n"
        "    return lambda: torch.zeros(batch, 1 << 28, device='cuda')\n"
    )
    # 14 rows of 1 GiB, and the context of 160 MiB
    assert tensorlens.max_batch(rows, card="t4") == 14
    for words in (["--card", "t4"], ["--card", "t4", "--capacity", "14.75 GiB"]):
        assert main(["estimate", f"{file}:rows", "--max-batch", *words]) == 0
        printed = capsys.readouterr().out
        assert printed.startswith("the largest batch that fits into 14.75 GiB is 14; 15 would need")


def test_estimates_of_cards_are_those_of_each(target):
    cards = {"t4": "Tesla T4", "h100": "NVIDIA H100 80GB HBM3"}
    found = tensorlens.estimate_cards(target, [*cards])
    assert [*found] == [*cards.values()]
    for short, name in cards.items():
        alone = tensorlens.estimate(target, card=short)
        assert bool(found[name].fits) is bool(alone.fits) is True
        assert found[name].needed == alone.needed


def test_scaling_takes_each_target(target):
    found = tensorlens.scaling(target, values=(64, 128, 256), card="t4")
    peaks = {value: found.estimates[value].peak_allocated for value in (64, 128, 256)}
    assert peaks[128] - peaks[64] == 64 << 30
    assert peaks[256] - peaks[128] == 128 << 30


ASKED = {
    "estimate": lambda target, **given: tensorlens.estimate(target, **given),
    "estimate_cards": lambda target, card="t4", **given: tensorlens.estimate_cards(
        target, [card], **given
    ),
    "max_batch": lambda target, **given: tensorlens.max_batch(target, **{"card": "t4", **given}),
    "scaling": lambda target, **given: tensorlens.scaling(target, **given),
}


@pytest.mark.parametrize(
    ("names", "given", "said"),
    [
        (ASKED, {"card": "t44"}, 'no card is known as "t44"; nearest: t4'),
        (ASKED, {"steps": 0}, "steps=0: it is a number, at least 1"),
        (
            ("estimate", "estimate_cards"),
            {"card": "t4", "device": "cpu"},
            'card "t4" and device "cpu" do not go together: leave one of them out',
        ),
        (("estimate", "estimate_cards"), {"device": "tpu"}, "device='tpu': cuda and cpu can be"),
        (
            ("estimate", "estimate_cards", "max_batch"),
            {"card": "t4", "capacity": "24 Gb/s"},
            "'24 Gb/s' is not a size: write for example '512 B', '64 MiB' or '24 GiB'",
        ),
        (
            ("estimate", "estimate_cards", "max_batch"),
            {"capacity": 2.5e9, "card": "t4"},
            "2500000000.0 is not a size",
        ),
        (
            ("estimate", "estimate_cards", "max_batch"),
            {"card": "t4", "capacity": 0},
            "capacity 0: nothing fits into that",
        ),
        (
            ("estimate", "estimate_cards", "max_batch"),
            {"card": "t4", "capacity": "40 GiB"},
            "capacity 40 GiB: a Tesla T4 has 14.75 GiB; leave one of them out",
        ),
    ],
)
def test_bad_requests_have_the_same_message(target, names, given, said):
    for name in names:
        with pytest.raises(UsageError) as caught:
            ASKED[name](target, **given)
        assert str(caught.value).startswith(said), name


def test_missing_arguments_are_named():
    for ask in ASKED.values():
        with pytest.raises(UsageError, match="batch_size: these are arguments of Keras models"):
            ask(rows, batch_size=2)
    with pytest.raises(UsageError, match="give a list of names"):
        tensorlens.estimate_cards(rows, "t4")
    with pytest.raises(UsageError, match=r"needs a capacity or a card: max_batch\(make_step"):
        tensorlens.max_batch(rows)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--card", "t44"], 'no card is known as "t44"; nearest: t4'),
        (["--capacity", "much"], "'much' is not a size"),
        (["--capacity", "0"], "capacity 0: nothing fits into that"),
        (["--card", "t4", "--device", "cpu"], 'card "t4" and device "cpu" do not go together'),
        (["--card", "t4", "--capacity", "40GiB"], "capacity 40GiB: a Tesla T4 has 14.75 GiB"),
    ],
)
def test_the_verbs_say_it_alike(tmp_path, capsys, words, said):
    (tmp_path / "program.py").write_text("import torch\n\ndef rows(batch=2): ...\n")
    program = f"{tmp_path / 'program.py'}:rows"
    verbs = (["estimate", program], ["compare", program, "--estimated"])
    for verb in verbs:
        assert main([verb[0], *words, *verb[2:], verb[1]]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


def test_a_function_that_takes_no_batch_is_refused():
    def alone():
        return rows()

    for ask in (
        lambda: tensorlens.max_batch(alone, card="t4"),
        lambda: tensorlens.scaling(alone, card="t4"),
    ):
        with pytest.raises(UsageError) as caught:
            ask()
        assert str(caught.value).endswith(
            "alone takes no batch: give it that argument, or let it return a compiled Keras model"
        )


def test_a_module_that_asks_about_itself_as_it_is_imported_is_told_so(tmp_path):
    (tmp_path / "asks.py").write_text(
        "import torch, tensorlens\n"
        "from tensorlens.planning import processes\n"
        f"processes.interpreter = lambda: {processes.interpreter()}\n"
        "def make_step():\n"
        "    return lambda: torch.ones(1000)\n"
        "print(tensorlens.estimate('asks:make_step', device='cpu'))\n"
    )
    done = subprocess.run(
        [*processes.interpreter(), "asks.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert (
        "asks:make_step asks about itself when it is loaded: put that call under if __name__ =="
        ' "__main__":'
    ) in done.stderr.splitlines()[-1]
