"""What a program asks of tensors without data is answered, and what was assumed is said."""

import io
import math
import os
import shutil
import stat

import pytest
import torch
from torch import nn

from tests.torch.fake_stage import staged


@pytest.fixture
def stage():
    with staged() as stage:
        yield stage


def values():
    return torch.randn(5, 7)


def test_assumed_number_is_finite_and_noted(stage):
    loss = values().sum()
    for number in (loss.item(), float(loss), loss.tolist(), float(f"{loss:.4f}")):
        assert math.isfinite(number)
    assert int(loss) == 1
    assert len(set(stage.said)) == 1
    assert "depends on data" in stage.said[0]


def test_numbers_of_the_program_keep_their_values(stage):
    assert (torch.tensor(3.0) * 2).item() == 6.0
    assert torch.tensor([3, 9, 2]).max().item() == 9
    assert [round(each.item(), 2) for each in torch.linspace(0, 0.3, 4)] == [0, 0.1, 0.2, 0.3]
    counter = torch.zeros((), dtype=torch.long)
    counter.add_(4)
    assert counter.item() == 4
    table = torch.zeros(3, dtype=torch.long)
    table[1] = 5
    assert table.tolist() == [0, 5, 0]
    assert list(range(torch.tensor(3))) == [0, 1, 2]
    assert torch.arange(4).numpy().tolist() == [0, 1, 2, 3]
    assert stage.said == []


def test_unknown_write_makes_a_value_unknown(stage):
    total = torch.zeros(())
    view = total.view(1)
    total += values().sum()
    assert view.item() == 1.0
    assert len(stage.said) == 1


def test_real_tensors_keep_their_values():
    labels = torch.tensor([4, 2, 0])
    with staged() as stage:
        assert labels.max().item() == 4
        assert (labels + 1).tolist() == [5, 3, 1]
        assert values()[: labels.max().item()].shape == (4, 7)
        assert stage.said == []


def test_assumed_values_are_finite(stage):
    x = values()
    norm = x.norm()
    assert not torch.isnan(x).any()
    assert not torch.isinf(norm)
    assert torch.isfinite(x).all()
    assert not (~torch.isfinite(x)).any()
    assert not (x != x).any()
    assert not torch.logical_or(norm.isnan(), norm.isinf())
    weights = nn.Parameter(x)
    weights.grad = values()
    nn.utils.clip_grad_norm_([weights], 1.0, error_if_nonfinite=True)


def test_comparisons_of_known_values(stage):
    x = values()
    assert (x > 0).any()
    assert (x > 0).all()
    assert torch.equal(x, values())
    assert torch.allclose(x, x + 1)
    assert not torch.equal(x, x[:2])


def test_closeness_of_known_values_is_exact(stage):
    ones = torch.ones(3)
    assert torch.allclose(ones, torch.tensor(1.0))
    assert torch.allclose(ones, torch.tensor([1.0, 1.0, 1.25]), atol=0.5)
    assert not torch.allclose(ones, torch.tensor([1.0, 1.0, 1.25]))
    assert stage.said == []
    assert torch.allclose(values(), torch.tensor(0.0))
    assert "two tensors are compared" in stage.said[0]


def test_selections_take_every_element(stage):
    x = values()
    assert x[x > 0].shape == (35,)
    assert x[(x > 0).any(1)].shape == (5, 7)
    assert x[x > 0, None].shape == (35, 1)
    assert x[~(x > 0)].shape == (0,)
    assert x.masked_select(x > 0).shape == (35,)
    assert (x > 0).nonzero().shape == (35, 2)
    assert [each.shape for each in torch.where(x > 0)] == [(35,), (35,)]
    assert torch.unique(x).shape == (35,)
    assert x[: (x > 0).sum().item()].shape == (5, 7)
    assert any("all 35 elements" in text for text in stage.said)


def test_selections_by_known_values_are_exact(stage):
    x = values()
    assert x[torch.tensor([True, False, True, True, False])].shape == (3, 7)
    assert torch.unique(torch.tensor([1, 1, 2])).tolist() == [1, 2]
    assert x.repeat_interleave(torch.tensor([1, 2, 0, 3, 1]), dim=0).shape == (7, 7)
    assert torch.bincount(torch.tensor([0, 3, 3])).tolist() == [1, 0, 0, 2]
    assert nn.functional.one_hot(torch.tensor([1, 4, 2])).shape == (3, 5)
    packed = nn.utils.rnn.pack_padded_sequence(
        torch.randn(3, 5, 2), torch.tensor([5, 3, 1]), batch_first=True
    )
    assert packed.data.shape == (9, 2)
    assert packed.batch_sizes.tolist() == [3, 2, 2, 1, 1]
    assert stage.said == []


def test_unique_rows_and_runs_of_known_values_are_exact(stage):
    rows = torch.tensor([[1, 2], [1, 2], [0, 5], [1, 2]])
    assert torch.unique(rows, dim=0).tolist() == [[0, 5], [1, 2]]
    found, inverse, counts = torch.unique(rows, dim=0, return_inverse=True, return_counts=True)
    assert (inverse.tolist(), counts.tolist()) == ([1, 1, 0, 1], [1, 3])
    found, counts = torch.unique_consecutive(rows, dim=0, return_counts=True)
    assert (found.tolist(), counts.tolist()) == ([[1, 2], [0, 5], [1, 2]], [2, 1, 1])
    assert torch.unique_consecutive(torch.tensor([3, 3, 1, 3])).tolist() == [3, 1, 3]
    assert stage.said == []


def test_unique_rows_and_runs_of_other_values_are_all(stage):
    x = values()
    for unique in (torch.unique, torch.unique_consecutive):
        parts = unique(x, dim=1, return_inverse=True, return_counts=True)
        assert [each.shape for each in parts] == [(5, 7), (7,), (7,)]
    parts = torch.unique_consecutive(x, return_inverse=True, return_counts=True)
    assert [each.shape for each in parts] == [(35,), (5, 7), (35,)]
    assert any("taken as all 7 elements" in text for text in stage.said)
    assert any("taken as all 35 elements" in text for text in stage.said)


def test_numbers_that_are_drawn_in_place_are_within_their_bounds(stage):
    numbers = torch.empty(1000, dtype=torch.long)
    assert {*numbers.random_(3).tolist()} == {0, 1, 2}
    assert {*numbers.random_(5, 7).tolist()} == {5, 6}
    assert min(numbers.random_(5, None).tolist()) >= 5
    assert {*torch.empty(1000, dtype=torch.int8).random_().tolist()} <= {*range(128)}
    assert nn.functional.one_hot(numbers.random_(2)).shape == (1000, 2)


def test_uninitialised_memory_is_unknown(stage):
    known = torch.tensor([4, 2])
    for make in (torch.empty_like, lambda like: like.new_empty(2)):
        stage.said.clear()
        assert make(known).tolist() == [1, 1]
        assert "depend on data" in stage.said[0]
    bag = nn.EmbeddingBag(10, 3)
    bag(torch.tensor([[1, 2], [4, 5]])).sum().backward()
    assert bag.weight.grad.shape == (10, 3)


def test_sparse_tensors_of_known_values(stage):
    indices = torch.tensor([[0, 1]])
    assert torch.sparse_coo_tensor(
        indices, torch.tensor([3, 4]), (2,), check_invariants=False
    ).shape == (2,)
    assert torch.eye(3).to_sparse().shape == (3, 3)


def test_gradients_go_through_selections(stage):
    x = values().requires_grad_()
    (x[x > 0].sum() + x[torch.tensor([True, False, True, True, False])].sum()).backward()
    assert x.grad.shape == (5, 7)


def test_bytes_of_a_selection(stage):
    x = values()
    mask = torch.tensor([True, False, True, True, False])
    before = stage.allocated()
    kept = x[mask]
    # three rows of seven floats
    assert stage.allocated() - before == 3 * 7 * 4
    del kept


def test_selected_values_are_known_where_mask_and_tensor_are(stage):
    lengths = torch.tensor([4, 0, 7, 2])
    assert lengths[lengths > 3].tolist() == [4, 7]
    assert stage.said == []


def test_assumed_mask_selection_is_noted(stage):
    mask = values()[:, 0] > 0
    assert torch.arange(5)[mask].tolist() == [0, 1, 2, 3, 4]
    assert any("selection by a mask" in each for each in stage.said)
    assert any("5 values of a tensor" in each for each in stage.said)


def test_bytes_of_one_hot(stage):
    index = torch.randint(0, 10, (6, 8))
    before = stage.allocated()
    kept = nn.functional.one_hot(index, 10)
    assert stage.allocated() - before == 6 * 8 * 10 * 8
    # zeros and a scatter into them: nothing besides
    del kept
    assert stage.peak(lambda: nn.functional.one_hot(index, 10)) == 6 * 8 * 10 * 8


def test_routing_is_even(stage):
    chosen = torch.topk(torch.randn(12, 4).softmax(-1), 2).indices
    counts = [(chosen == expert).sum().item() for expert in range(4)]
    assert counts == [6, 6, 6, 6]
    rows = [torch.where((chosen == expert).any(1))[0].shape[0] for expert in range(4)]
    assert sum(rows) == 24
    assert stage.said


def test_a_mixture_of_experts_learns(stage):
    experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
    router = nn.Linear(8, 4)
    x = torch.randn(12, 8)
    weights, chosen = router(x).softmax(-1).topk(2)
    out = torch.zeros_like(x)
    mask = nn.functional.one_hot(chosen, 4).permute(2, 1, 0)
    for number, expert in enumerate(experts):
        place, row = torch.where(mask[number])
        out.index_add_(0, row, expert(x[row]) * weights[row, place, None])
    out.sum().backward()
    assert all(each.weight.grad is not None for each in experts)


def test_loops_that_wait_for_a_value_end(stage):
    x, rounds = values(), 0
    while (x > 0).all():
        rounds += 1
    while x.sum().item() > 0.5:
        rounds += 1
    assert 200 <= rounds < 210
    nn.init.trunc_normal_(torch.empty(30, 30))


def test_layers_that_are_dropped_at_random_are_there(stage):
    assert not torch.rand([]) < 0.1


def test_values_for_numpy_and_logs(stage, capsys):
    numpy = pytest.importorskip("numpy")
    x = values()
    assert x.cpu().numpy().shape == (5, 7)
    assert numpy.asarray(x).sum() == 5 * 7
    assert numpy.asarray(x[0] > 0).tolist() == (x[0] > 0).tolist() == [True] * 7
    assert (x > 0).numpy().dtype == bool
    with pytest.raises(RuntimeError, match="requires grad"):
        x.requires_grad_().numpy()
    print(x.sum(), f"{x.sum()}")
    assert "FakeTensor" in capsys.readouterr().out


def test_schedulers_and_early_stopping(stage):
    parameter = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=5)
    best, stopped = float("inf"), False
    for _ in range(3):
        loss = (parameter - values()[0, :3]).square().sum()
        loss.backward()
        optimizer.step()
        scheduler.step(loss.item())
        best, stopped = min(best, loss.item()), best < 0
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert best == 1.0
    assert not stopped


def test_no_checkpoint_is_written_and_it_comes_back(stage, tmp_path):
    net = nn.Linear(3, 4)
    path = tmp_path / "net.pt"
    torch.save({"net": net.state_dict(), "step": 7}, path)
    assert not path.exists()
    state = torch.load(path, map_location="cpu")
    assert state["step"] == 7
    net.load_state_dict(state["net"])
    buffer = io.BytesIO()
    torch.save(net.weight, buffer)
    buffer.seek(0)
    assert torch.load(buffer).shape == (4, 3)
    assert "not written" in stage.said[0]


def test_checkpoint_in_an_open_file_comes_back_and_the_file_is_as_before(tmp_path):
    old, new, own = (tmp_path / name for name in ("old.pt", "new.pt", "own.bin"))
    old.write_bytes(b"trained for a week")
    own.write_bytes(b"before")
    with staged():
        net = nn.Linear(3, 4)
        for path in (old, new, old):
            with open(path, "wb") as file:  # noqa: PTH123
                file.write(b"header")
                torch.save(net.state_dict(), file)
            assert torch.load(path, map_location="cpu")["weight"].shape == (4, 3)
        with old.open("rb") as file:
            assert torch.load(file)["weight"].shape == (4, 3)
        own.open("wb").write(b"after")
        left_open = (tmp_path / "log.bin").open("wb")
        left_open.write(b"left open")
    assert old.read_bytes() == b"trained for a week"
    assert own.read_bytes() == b"after"
    assert (tmp_path / "log.bin").read_bytes() == b"left open"
    assert {each.name for each in tmp_path.iterdir()} == {"old.pt", "own.bin", "log.bin"}


def test_two_streams_write_one_file(tmp_path):
    path = tmp_path / "own.bin"
    with staged(), path.open("wb") as one, path.open("wb") as other:
        one.write(b"one")
        one.flush()
        other.write(b"two")
    assert path.read_bytes() == b"two"


def test_a_file_is_whole_whatever_ends_the_run(tmp_path):
    old = tmp_path / "old.pt"
    old.write_bytes(b"trained for a week")
    with staged(), old.open("wb") as file:
        torch.save(nn.Linear(3, 4).state_dict(), file)
        assert old.read_bytes() == b"trained for a week"
    with staged(), old.open("wb") as file:
        file.write(b"half of it")
        file.flush()
        assert old.read_bytes() == b"trained for a week"
    assert old.read_bytes() == b"half of it"


def test_checkpoint_saved_beside_and_renamed_comes_back_and_the_file_is_as_before(tmp_path):
    old, new, beside = (tmp_path / name for name in ("old.pt", "new.pt", "beside.pt"))
    old.write_bytes(b"trained for a week")
    with staged():
        net = nn.Linear(3, 4)
        for path, rename in ((old, os.replace), (new, os.rename), (old, shutil.move)):
            torch.save(net.state_dict(), beside)
            rename(beside, path)
            assert torch.load(path)["weight"].shape == (4, 3)
            with beside.open("wb") as file:
                torch.save(net.state_dict(), file)
            beside.replace(path)
            with pytest.raises(FileNotFoundError):
                torch.load(tmp_path / "other.pt")
        (tmp_path / "own.bin").write_bytes(b"own")
        (tmp_path / "own.bin").rename(tmp_path / "moved.bin")
    assert old.read_bytes() == b"trained for a week"
    assert (tmp_path / "moved.bin").read_bytes() == b"own"
    assert {each.name for each in tmp_path.iterdir()} == {"old.pt", "moved.bin"}


def test_a_copy_of_a_checkpoint_that_is_not_written_replaces_no_file(tmp_path):
    last, best = tmp_path / "last.pt", tmp_path / "best.pt"
    for path in (last, best):
        path.write_bytes(path.name.encode())
    with staged():
        torch.save(nn.Linear(3, 4).state_dict(), last)
        shutil.copyfile(last, best)
        assert torch.load(best)["weight"].shape == (4, 3)
        shutil.copyfile(last, tmp_path / "new.pt")
    assert best.read_bytes() == b"best.pt"
    assert {each.name for each in tmp_path.iterdir()} == {"last.pt", "best.pt"}


def test_a_file_that_is_written_keeps_its_permissions(tmp_path):
    path = tmp_path / "own.bin"
    path.write_bytes(b"before")
    path.chmod(0o600)
    with staged(), path.open("wb") as file:
        file.write(b"after")
    assert path.read_bytes() == b"after"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_forked_process_writes_files_as_ever(tmp_path):
    path = tmp_path / "own.bin"
    path.write_bytes(b"before")
    with staged():
        child = os.fork()
        if not child:
            with path.open("wb") as file:
                file.write(b"after")
            os._exit(0)
        os.waitpid(child, 0)
    assert path.read_bytes() == b"after"
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_that_is_not_opened_is_as_before(tmp_path):
    path = tmp_path / "old.bin"
    path.write_bytes(b"before")
    with staged(), pytest.raises(ValueError, match="binary mode"):
        open(path, "wb", encoding="utf-8")  # noqa: PTH123
    assert path.read_bytes() == b"before"


def test_state_dict_in_memory_is_loaded():
    real = io.BytesIO()
    torch.save(torch.zeros(5), real)
    with staged():
        for _ in range(10):
            torch.save(torch.zeros(3), io.BytesIO())
            assert torch.load(io.BytesIO(real.getvalue())).shape == (5,)


def test_a_saved_state_takes_no_memory(stage, tmp_path):
    net = nn.Linear(300, 400)
    before = stage.allocated()
    torch.save(net.state_dict(), tmp_path / "net.pt")
    assert stage.allocated() == before


def test_weights_of_real_files(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    net = nn.Linear(3, 4)
    torch.save(net.state_dict(), tmp_path / "net.pt")
    safetensors.save_file(net.state_dict(), tmp_path / "net.safetensors")
    with staged():
        other = nn.Linear(3, 4)
        other.load_state_dict(torch.load(tmp_path / "net.pt", weights_only=True))
        other.load_state_dict(safetensors.load_file(tmp_path / "net.safetensors"))
        safetensors.save_file(other.state_dict(), tmp_path / "new.safetensors")
    assert not (tmp_path / "new.safetensors").exists()


def test_threads_run_without_data_too(stage):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(torch.zeros, 1000).result()
    assert type(made).__name__ == "FakeTensor"


def test_all_is_as_before_afterwards():
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    before = dict(vars(FakeTensor)), FakeTensorMode.dispatch, torch.save, torch.load
    with staged():
        pass
    assert (dict(vars(FakeTensor)), FakeTensorMode.dispatch, torch.save, torch.load) == before


def test_no_model_of_transformers_is_written(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=8, n_embd=4, n_layer=1, n_head=1, n_positions=8)
    with staged() as stage:
        transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "model")
        assert "not written" in stage.said[-1]
    assert not (tmp_path / "model").exists()
    assert transformers.PreTrainedModel.save_pretrained.__name__ == "save_pretrained"
