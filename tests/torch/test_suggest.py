"""``suggest()`` on programs whose memory is known, its predictions against what is measured."""

import gc
import os
import sys
from pathlib import Path

import pytest
import suggest_programs as programs
import torch
from torch.utils.checkpoint import checkpoint

import tensorlens
from tensorlens.planning import ProgramFailed, processes
from tests import warm
from tests.pasted_code import pasted, printed_code

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="what is in a queue between processes is told by Linux"
)
A, P, N = programs.OUTPUT_BYTES, programs.PARAMETER_BYTES, programs.PARAMETERS


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "OMP_NUM_THREADS", "1")
        patch.setattr(processes, "interpreter", warm.python)
        yield


def verified(make_step):
    return tensorlens.suggest(make_step, verify=True, top=9, steps=1)


@pytest.fixture(scope="module")
def stack():
    return verified(programs.make_stack)


@pytest.fixture(scope="module")
def convolutions():
    return verified(programs.make_convolutions)


@pytest.fixture(scope="module")
def encoder():
    return verified(programs.make_encoder)


@pytest.fixture(scope="module")
def caching():
    return verified(programs.make_caching)


@pytest.fixture(scope="module")
def adapted():
    return verified(programs.make_adapted)


@pytest.fixture(scope="module")
def loading():
    return verified(programs.make_loading)


def check(found, kinds):
    assert {each.kind for each in found} >= kinds
    assert found.measured_peak == pytest.approx(found.peak, rel=0.001)
    for each in found:
        if each.settings:
            assert each.measured_saving is not None, each.missing
            assert each.predicted_saving == pytest.approx(each.measured_saving, rel=0.05), each
            assert each.predicted_peak == found.peak - each.predicted_saving


def test_predictions_for_a_stack_of_layers_are_what_is_measured(stack):
    check(stack, {"checkpoint", "bf16", "optimizer", "set_to_none"})


def test_predictions_for_convolutions_are_what_is_measured(convolutions):
    check(convolutions, {"checkpoint", "bf16"})
    # plain SGD keeps nothing, and gradients are freed already
    assert {each.kind for each in convolutions}.isdisjoint({"optimizer", "set_to_none"})


def test_predictions_for_a_transformer_are_what_is_measured(encoder):
    check(encoder, {"checkpoint", "bf16", "optimizer", "set_to_none", "kept"})


def test_the_state_of_adam_by_hand(stack):
    # two numbers for each one of a parameter, and a count of 4 bytes for each parameter
    assert stack["optimizer"].predicted_saving == 2 * P + 4 * N
    assert stack["optimizer"].option == {"optimizer": "sgd"}
    assert stack["optimizer"].how == "replayed"
    assert stack["optimizer"].code == "optimizer = torch.optim.SGD(net.parameters(), lr=1e-06)"


def test_gradients_that_are_zeroed_by_hand(stack):
    # the peak is where backward begins: none of them is needed yet
    assert stack["set_to_none"].predicted_saving == P
    assert stack["set_to_none"].code == "optimizer.zero_grad(set_to_none=True)"


def test_checkpoints_by_hand(stack):
    # kept are the outputs of all blocks but one, as inputs of the next, and those of one block
    # that are made again
    saved = (N - (programs.BLOCKS - 1) - programs.LAYERS) * A
    assert stack["checkpoint"].predicted_saving == pytest.approx(saved, rel=0.05)
    assert stack["checkpoint"].change == f"checkpoint {programs.BLOCKS} blocks"
    assert stack["checkpoint"].what == f"{programs.BLOCKS} x Sequential in net"
    assert "runs twice" in stack["checkpoint"].cost


def test_bf16_is_simulated(stack):
    assert stack["bf16"].how == "simulated"
    assert stack["bf16"].option == {"autocast": "bf16"}


def test_logits_that_backward_has_no_use_for(encoder):
    (logits,) = [each for each in encoder if each.kind == "kept"]
    assert logits.change == "release logits before backward"
    assert logits.option is None
    line = next(
        number
        for number, text in enumerate(Path(programs.__file__).read_text().splitlines(), 1)
        if number > programs.make_encoder.__code__.co_firstlineno and "loss.backward" in text
    )
    assert logits.code == f"# before suggest_programs.py:{line}\ndel logits"
    assert logits.predicted_saving == programs.LOGITS_BYTES
    assert "your code still needs it" in logits.missing


def test_outputs_of_the_step_before():
    found = tensorlens.suggest(programs.make_keeper)
    (outputs,) = [each for each in found if each.kind == "kept"]
    without = {"without": {"arguments": {"keeps": False}}}
    (changed,) = tensorlens.compare(programs.make_keeper, without, repeats=1, steps=2).outcomes
    assert outputs.predicted_saving == found.peak - changed.peak_allocated == 4 * A
    assert outputs.change == "release outputs after the step"
    assert "suggest_programs.py" in outputs.what


def test_gradients_that_go_too_late():
    found = verified(programs.make_late)
    late = found["zero_grad"]
    assert late.option is None and "has no setting" in late.missing
    first = {"first": {"arguments": {"first": True}}}
    (changed,) = tensorlens.compare(programs.make_late, first, repeats=1, steps=2).outcomes
    assert late.predicted_saving == found.peak - changed.peak_allocated > 0


def test_a_smaller_queue_by_hand(loading):
    batches, workers = programs.WORKERS * programs.PREFETCH, programs.WORKERS
    queue = loading["queue"]
    assert queue.before == batches * programs.LOADED_BYTES
    assert queue.predicted_peak == workers * programs.LOADED_BYTES
    assert queue.predicted_saving == (batches - workers) * programs.LOADED_BYTES
    assert queue.memory == "shared memory" and queue.how == "counted"
    assert queue.option == {"prefetch_factor": 1}
    # it is more than the peak, which nothing of it is in
    assert queue.predicted_saving > loading.peak and loading[0] is queue


@linux
def test_a_smaller_queue_is_measured(loading):
    queue = loading["queue"]
    assert (queue.measured_peak, queue.measured_saving) == (
        queue.predicted_peak,
        queue.predicted_saving,
    )
    assert "exact  queue" in str(loading)


def test_note_when_nothing_to_save():
    found = tensorlens.suggest(programs.make_lean)
    assert len(found) == 0
    assert "nothing that was tried saves 1 %" in str(found)


def test_a_program_that_fails():
    def make_step():
        def step():
            raise ValueError("not today")

        return step

    with pytest.raises(ProgramFailed, match="ValueError: not today"):
        tensorlens.suggest(make_step)


def make_generator():
    def step():
        yield torch.ones(4)

    return step


def test_a_step_that_runs_nothing():
    with pytest.raises(ProgramFailed, match="make_generator returned a generator function"):
        tensorlens.suggest(make_generator)


def test_checkpoints_of_blocks_with_a_cache_are_predicted_without_it(caching):
    change = caching["checkpoint"]
    assert change.predicted_saving == pytest.approx(change.measured_saving, rel=0.02)
    assert change.code.startswith("model.config.use_cache = False\n")
    assert "use_cache=False" in change.cost


def test_simulated_predictions_with_frozen_weights_are_exact(adapted):
    tried = [each for each in adapted if each.how == "simulated"]
    assert {each.kind for each in tried} >= {"checkpoint"}
    for each in tried:
        assert each.predicted_saving == each.measured_saving


@pytest.mark.parametrize("columns", [80, 120])
def test_printed_code_of_checkpoints_can_be_pasted(columns, caching, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    change = caching["checkpoint"]
    code = printed_code(caching, change)
    assert code == change.code
    model = programs.CachingModel()
    exec(code, {"model": model})
    assert not model.config.use_cache
    model(torch.ones(2, 64)).sum().backward()
    assert all(block.forward.func is checkpoint for block in model.blocks)


@pytest.mark.parametrize("script", [programs.SCRIPT, programs.TOP_LEVEL])
def test_printed_code_of_a_script_can_be_pasted(script, tmp_path):
    # variables of a function that is over, and of a module that is called __main__
    train = tmp_path / "train.py"
    train.write_text(script)
    found = tensorlens.suggest(str(train), top=9)
    spaces = pasted(found, {"torch": torch, "model": programs.CachingModel()})
    assert {"checkpoint 4 blocks", "SGD without momentum"} <= set(spaces)
    assert found["checkpoint"].what == "4 x CachingBlock in model.blocks"
    assert "model.blocks[0-3].inner.0: saved by Addmm" in found.tensor
    assert "__main__" not in str(found) and "kept by" not in str(found)


def test_whole_program_is_not_run_with_settings(tmp_path):
    train = tmp_path / "train.py"
    train.write_text(programs.TOP_LEVEL)
    found = tensorlens.suggest(str(train), top=9, verify=True)
    assert found.verified and found["checkpoint"].measured_saving is None
    assert found["checkpoint"].missing.startswith("built-in settings need a make_step()")


def test_wrapper_is_no_optimizer_of_its_own():
    assert tensorlens.suggest(programs.train_wrapped)["optimizer"].what == "the state of Adam"


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_printed_code_can_be_pasted(columns, stack, encoder, convolutions, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    kinds = set()
    for found in (stack, encoder, convolutions):
        model = Everywhere()
        optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))])
        names = {"torch": torch, "model": model, "net": model, "optimizer": optimizer, "logits": 0}
        for change, space in pasted(found, names).items():
            (kind,) = {each.kind for each in found if each.change == change}
            kinds.add(kind)
            if change == "SGD":
                assert type(space["optimizer"]) is torch.optim.SGD
            if kind == "kept":
                assert "logits" not in space
    assert kinds >= {"checkpoint", "bf16", "optimizer", "set_to_none", "kept"}


class Everywhere:
    """A model that has blocks by whatever path they are looked for."""

    def __getattr__(self, name):
        return Everywhere()

    def __getitem__(self, name):
        return Everywhere()

    def __iter__(self):
        return iter([torch.nn.Linear(2, 2)])

    def parameters(self):
        return [torch.nn.Parameter(torch.ones(2))]


def test_printed_autocast_is_on_where_the_model_is_called(encoder):
    code = printed_code(encoder, encoder["bf16"])
    space = {"torch": torch}
    assert code.endswith("\n    ...")
    exec(code.replace("...", "dtype = torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype"), space)
    assert space["dtype"] is torch.bfloat16


def test_checkpoints_of_a_model_in_a_model_are_its_own_and_save_as_much(adapted):
    found = adapted["checkpoint"]
    assert found.code == 'model.gradient_checkpointing_enable({"use_reentrant": False})'

    def peak(change):
        # or what other tests left as garbage may be freed between the two
        gc.collect()
        with tensorlens.record() as recording:
            step = programs.make_adapted(change)
            step()
            step()
        return recording.peak("cpu").bytes

    assert peak(None) - peak(found.code) == found.predicted_saving


def test_checkpoints_that_fail_are_not_suggested_and_the_cache_is_named():
    found = tensorlens.suggest(programs.make_always_caching, top=9, steps=1)
    assert "checkpoint" not in {each.kind for each in found}
    (said,) = [note for note in found.notes if "CheckpointError" in note]
    assert "use_cache=True" in said


def test_change_with_which_the_program_fails_is_not_suggested():
    for verify in (False, True):
        found = tensorlens.suggest(programs.make_following, top=9, steps=1, verify=verify)
        assert "optimizer" not in {each.kind for each in found}
        assert any(note.startswith("SGD is left out: KeyError") for note in found.notes)
