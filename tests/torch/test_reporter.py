"""What a person can ask of MemReporter, and what it says to what it cannot take."""

import gc
import io
import subprocess
import sys
import textwrap
import weakref

import pytest
import torch
from census_models import Mlp
from torch import nn

import tensorlens
from tensorlens import Snapshot
from tensorlens.errors import DeviceError, UsageError
from tests import warm


@pytest.fixture(autouse=True)
def tidy():
    torch.manual_seed(0)
    yield
    gc.collect()


def names(snapshot):
    return {each.name for each in snapshot.tensors}


def report(reporter, **options):
    file = io.StringIO()
    reporter.report(file=file, **options)
    return file.getvalue()


def rows(text):
    return [line for line in text.splitlines() if "fc" in line]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (nn.Linear, "MemReporter takes Linear() in place of the class Linear"),
        (torch.optim.Adam, "MemReporter takes Adam() in place of the class Adam"),
        (3, "MemReporter takes models, optimizers and what holds tensors, not int"),
        ("model", "MemReporter takes models, optimizers and what holds tensors, not str"),
        (
            len,
            "MemReporter takes models, optimizers and what holds tensors, not "
            "builtin_function_or_method",
        ),
        (report, "MemReporter takes models, optimizers and what holds tensors, not function"),
        (sys, "MemReporter takes models, optimizers and what holds tensors, not module"),
    ],
    ids=["module", "optimizer", "int", "str", "builtin", "function", "import"],
)
def test_objects_without_tensors_are_refused(item, message):
    for ask in (
        lambda: tensorlens.MemReporter(item),
        lambda: tensorlens.MemReporter(model=item),
        lambda: tensorlens.MemReporter(optimizer=item),
        lambda: tensorlens.MemReporter(mine=item),
        lambda: tensorlens.MemReporter([item]),
        lambda: tensorlens.MemReporter().add(mine=item),
        lambda: tensorlens.MemReporter().add_optimizer(item),
    ):
        with pytest.raises(UsageError) as caught:
            ask()
        assert str(caught.value) == message


def test_none_is_no_tensor_holder():
    assert tensorlens.MemReporter(None).snapshot() is not None
    with pytest.raises(UsageError, match="not NoneType"):
        tensorlens.MemReporter().add(mine=None)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"roles": "weights"}, UsageError, "weights"),
        ({"roles": ["gradient", "weights"]}, UsageError, "weights"),
        ({"min_size": "large"}, UsageError, "large"),
        ({"min_size": -1}, UsageError, "-1"),
        ({"top": -1}, UsageError, "-1"),
        ({"devices": "abacus"}, DeviceError, "abacus"),
    ],
    ids=str,
)
def test_options_that_do_not_exist(options, kind, words):
    reporter = tensorlens.MemReporter(Mlp())
    with pytest.raises(kind) as caught:
        report(reporter, **options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("top", ["all", 1.5, [3], -1])
def test_a_number_of_rows(top):
    with pytest.raises(UsageError) as caught:
        report(tensorlens.MemReporter(), top=top)
    assert str(caught.value) == f"top = {top!r}: give the number of rows, or None for all"


@pytest.mark.parametrize("wrong", [3, 2.5, object(), [3], None])
def test_roles_and_sizes_of_a_wrong_type(wrong):
    reporter = tensorlens.MemReporter()
    with pytest.raises(UsageError):
        report(reporter, roles=wrong)
    if wrong != 3:
        with pytest.raises(UsageError):
            report(reporter, min_size=wrong)


class TestReport:
    def test_report_is_printed_and_returned(self, capsys):
        model = Mlp()
        snapshot = tensorlens.MemReporter(model).report()
        assert isinstance(snapshot, Snapshot)
        printed = capsys.readouterr().out
        for name in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"):
            assert name in printed
            assert name in names(snapshot)

    def test_report_to_a_file(self, capsys):
        assert "fc1.weight" in report(tensorlens.MemReporter(model := Mlp()))
        assert capsys.readouterr().out == ""
        assert model is not None

    def test_the_options_of_pytorch_memlab(self):
        model = Mlp()
        reporter = tensorlens.MemReporter(model)
        for device in ("cpu", torch.device("cpu")):
            assert "fc1.weight" in report(reporter, device=device)
        assert "fc1.weight" in report(reporter, verbose=True, device=None)
        reporter.report(False, "cpu", file=io.StringIO())

    def test_report_roles(self):
        model = Mlp()
        model(model.batch()).sum().backward()
        reporter = tensorlens.MemReporter(model)
        shown = rows(report(reporter, roles="gradient", top=None))
        assert len([line for line in shown if ".grad" in line]) == 4
        assert not [line for line in shown if "fc1.weight " in line]

    def test_report_sizes(self):
        model = Mlp()
        reporter = tensorlens.MemReporter(model)
        # 2400, 1200, 120 and 40 bytes
        assert len(rows(report(reporter, min_size=1201, top=None))) == 1
        assert len(rows(report(reporter, min_size="1 KiB", top=None))) == 2
        assert len(rows(report(reporter, min_size=41, top=None))) == 3
        assert len(rows(report(reporter, top=None))) == 4

    def test_report_top(self):
        model = nn.Linear(1000, 1000)
        model.fc_name = None
        reporter = tensorlens.MemReporter(fc=model)
        assert len(rows(report(reporter, top=1))) == 1
        assert len(rows(report(reporter, top=0))) == 0

    def test_report_explanations(self):
        reporter = tensorlens.MemReporter()
        plain, explained = report(reporter), report(reporter, explain=True)
        explanation = reporter.snapshot().ledger["cpu"].explanations["allocated"]
        assert explanation[:20] in " ".join(explained.split())
        assert explanation[:20] not in " ".join(plain.split())

    def test_report_with_unencodable_names(self):
        model = nn.Module()
        model.gewicht_ä = nn.Parameter(torch.zeros(100_000))
        raw = io.BytesIO()
        file = io.TextIOWrapper(raw, encoding="ascii")
        tensorlens.MemReporter(model).report(file=file)
        file.flush()
        assert b"gewicht_" in raw.getvalue()


class TestOwners:
    def test_a_model_is_not_kept_alive(self):
        model = Mlp()
        adam = torch.optim.Adam(model.parameters())
        reporter = tensorlens.MemReporter(model, adam)
        ends = weakref.ref(model), weakref.ref(adam)
        del model, adam
        gc.collect()
        assert [each() for each in ends] == [None, None]
        snapshot = reporter.snapshot()
        assert not {name for name in names(snapshot) if "fc1" in name}
        report(reporter)

    def test_a_list_is(self):
        reporter = tensorlens.MemReporter().add(history=[torch.zeros(3)])
        gc.collect()
        assert "history[0]" in names(reporter.snapshot())

    def test_a_snapshot_keeps_no_tensor(self):
        model, mine = Mlp(), torch.zeros(3)
        snapshot = tensorlens.MemReporter(model).report(file=io.StringIO())
        ends = [weakref.ref(each) for each in (model, mine, model.fc1.weight)]
        del model, mine
        assert [each() for each in ends] == [None] * 3
        assert "fc1.weight" in names(snapshot)

    def test_add_optimizer_later(self):
        model = nn.Linear(3, 2)
        outside = torch.zeros(3, requires_grad=True)
        adam = torch.optim.Adam([*model.parameters(), outside])
        (model(torch.ones(1, 3)).sum() + outside.sum()).backward()
        adam.step()
        reporter = tensorlens.MemReporter(model)
        reporter.add_optimizer(adam)
        found = names(reporter.snapshot())
        assert {"Adam.weight.exp_avg", "Adam.param_groups[0].params[2].exp_avg"} <= found

    def test_plain_values_beside_what_holds_tensors(self):
        model = Mlp()
        checkpoint = {"epoch": 3, "model": {"w": torch.zeros(3)}, "best": None, "kind": Mlp}
        assert "model['w']" in names(tensorlens.MemReporter(checkpoint).snapshot())
        for several in ([model, None], [None, [3, (model,)]], (model, "text", print)):
            assert "fc1.weight" in names(tensorlens.MemReporter(several).snapshot())
        for nothing in ([], {}, [None], [[], {}]):
            tensorlens.MemReporter(nothing)

    @pytest.mark.parametrize("plain", [[3], [None, 3], [[], [3, "text"]], {"epoch": 3}])
    def test_plain_values_are_refused(self, plain):
        with pytest.raises(UsageError) as caught:
            tensorlens.MemReporter(Mlp(), plain)
        message = "MemReporter takes models, optimizers and what holds tensors, not int"
        assert str(caught.value) == message

    def test_model_containing_itself(self):
        model = Mlp()
        several, mapped = [model], {"net": model}
        several += [several, [several]]
        mapped["self"] = mapped
        assert "fc1.weight" in names(tensorlens.MemReporter(several).snapshot())
        assert "net.fc1.weight" in names(tensorlens.MemReporter(mapped).snapshot())
        deep = [model]
        for _ in range(5000):
            deep = [deep]
        assert "fc1.weight" in names(tensorlens.MemReporter(deep).snapshot())

    def test_add_is_a_chain(self):
        one, other = [torch.zeros(1)], {"k": torch.zeros(2)}
        reporter = tensorlens.MemReporter()
        assert reporter.add(one=one).add(other=other) is reporter
        assert {"one[0]", "other['k']"} <= names(reporter.snapshot())

    def test_a_tensor_that_was_given_lives_no_longer(self):
        mine = torch.zeros(3)
        reporter = tensorlens.MemReporter(mine=mine)
        assert "mine" in names(reporter.snapshot())
        ends = weakref.ref(mine)
        del mine
        assert ends() is None
        assert "mine" not in names(reporter.snapshot())


class TestDifferences:
    def test_diff_without_earlier_snapshot(self):
        with pytest.raises(UsageError, match="call snapshot\\(\\) or report\\(\\) first"):
            tensorlens.MemReporter().diff()

    @pytest.mark.parametrize("before", [3, "snapshot", {}])
    def test_diff_with_no_snapshot_is_refused(self, before):
        with pytest.raises(UsageError, match=f"not with {type(before).__name__}"):
            tensorlens.MemReporter().diff(before)

    def test_since_the_last(self):
        reporter = tensorlens.MemReporter()
        before = reporter.snapshot()
        history = [torch.zeros(1000)]
        text = str(reporter.diff())
        assert "history[0]" in text
        # the last is now the one that diff() took
        assert "history[0]" not in str(reporter.diff())
        assert "history[0]" in str(reporter.diff(before))
        assert history is not None


def test_json_gives_the_same_snapshot_back():
    model = Mlp()
    adam = torch.optim.Adam(model.parameters())
    model(model.batch()).sum().backward()
    adam.step()
    output = model(model.batch())
    odd = [torch.eye(3).to_sparse(), torch.zeros(5, device="meta")]
    snapshot = tensorlens.MemReporter(model, adam).snapshot()
    again = Snapshot.from_json(snapshot.to_json())
    assert again.to_dict() == snapshot.to_dict()
    assert list(again.tensors) == list(snapshot.tensors)
    assert str(again) == str(snapshot)
    assert output is not None and len(odd) == 2


def run(program):
    command = [*warm.python(), "-c", textwrap.dedent(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_before_torch_is_imported():
    done = run(
        """
        import sys, tensorlens
        reporter = tensorlens.MemReporter()
        snapshot = reporter.report()
        assert len(snapshot.tensors) == 0 and not snapshot.ledger
        print("torch" in sys.modules, "tensorflow" in sys.modules, snapshot.notes)
        import torch
        model = torch.nn.Linear(3, 2)
        print(sorted(each.name for each in reporter.add(m=model).snapshot().tensors))
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    *printed, first, second = done.stdout.splitlines()
    assert first == "False False ('no framework has been imported',)"
    assert second == "['m.bias', 'm.weight']"
    assert "  note: no framework has been imported" in printed


def test_a_device_that_torch_does_not_have():
    # in a process without TensorFlow, which has an answer of its own
    done = run("import tensorlens, torch\ntensorlens.MemReporter().report(device='cuda:99')")
    error = done.stderr.splitlines()[-1]
    assert error.startswith("tensorlens.errors.DeviceError: ") and "cuda:99" in error


def test_a_leaking_loop_of_reporters_leaks_nothing():
    model = Mlp()
    for _ in range(3):
        tensorlens.MemReporter(model).snapshot()
    gc.collect()
    before = len([each for each in gc.get_objects() if type(each) is tensorlens.MemReporter])
    for _ in range(5):
        tensorlens.MemReporter(model).snapshot()
    after = len([each for each in gc.get_objects() if type(each) is tensorlens.MemReporter])
    assert after == before
