"""What autograd, hooks, compiled code and autocast keep has its name, its module and its line."""

import gc

import pytest
import torch
from census_checks import Since, gradients, parameters
from census_models import Checkpointed, Custom, Mlp, Tied, Transformer
from torch import nn

import tensorlens


@pytest.fixture(autouse=True)
def tidy():
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
    gc.collect()


PROJECTED = "project: MmBackward0.result"
PACKED = "TestActivations.test_values_that_hooks_packed(): output"


def unhalved(tensor):
    return tensor.float()


class TestActivations:
    def test_transformer_activations(self):
        since = Since()
        model = Transformer()
        output = model(model.batch())
        found = since.records(model)
        by_name = {each.name: each for each in found}
        # batch 3, length 16, width 32, four times as wide inside
        gelu = by_name["layer.0.mlp.1: GeluBackward0.self"]
        assert (gelu.role, gelu.nbytes, gelu.module) == ("activation", 24576, "layer.0.mlp.1")
        norm = by_name["layer.1.norm2: NativeLayerNormBackward0.result1"]
        assert (norm.role, norm.nbytes, norm.module) == ("activation", 192, "layer.1.norm2")
        tokens = by_name["tokens: EmbeddingBackward0.indices"]
        assert (tokens.nbytes, tokens.dtype, tokens.module) == (384, "int64", None)
        mine = by_name["TestActivations.test_transformer_activations(): output"]
        assert (mine.role, mine.nbytes) == ("activation", 600)
        del output, mine
        assert not [each for each in since.records(model) if each.role == "activation"]

    def test_a_head_that_shares_the_weight_of_an_embedding(self):
        since = Since()
        model = Tied()
        output = model(model.batch())
        names = {each.name for each in since.records(model) if each.role == "activation"}
        assert "head: MmBackward0.self" in names or "head: AddmmBackward0.mat1" in names
        assert not [name for name in names if name.startswith("tokens: ") and "Mm" in name]
        assert output is not None

    def test_parts_of_one_projection_are_named_by_it(self):
        since = Since()
        model = nn.ModuleDict({"project": nn.Linear(8, 24, bias=False)})
        query, key, value = model["project"](torch.ones(5, 8)).split(8, dim=1)
        output = (query @ key.t()) @ value
        del query, key, value
        (found,) = (each for each in since.records(model) if each.name == PROJECTED)
        # five rows of 24
        assert (found.role, found.module, found.storage_nbytes) == ("activation", "project", 480)
        assert found.held_by == "MmBackward0.mat2, MmBackward0.self"
        assert output is not None

    def test_activation_birth_lines(self):
        reporter = tensorlens.MemReporter()
        model = Mlp()
        output = model(model.batch())
        found = {each.name: each for each in reporter.add(model=model).snapshot().tensors}
        gelu = found["model: GeluBackward0.self"]
        source = Mlp.forward.__code__
        assert gelu.born.filename == source.co_filename
        assert gelu.born.lineno == source.co_firstlineno + 1
        assert gelu.born.function == "Mlp.forward"
        assert output is not None

    def test_custom_function_activations(self):
        since = Since()
        model = Custom()
        output = model(torch.zeros(7, 20))
        found = since.sizes(model)
        # seven rows of 30, three times: x, twice x, and an attribute of ctx
        assert found["Custom: SquareBackward.saved_tensors[0]"] == ("activation", 840)
        assert found["Custom: SquareBackward.saved_tensors[1]"] == ("activation", 840)
        assert found["SquareBackward.extra"] == ("other", 840)
        assert output is not None

    def test_saved_inputs_are_named(self):
        since = Since()
        batch = torch.ones(7, requires_grad=False)
        weight = torch.ones(7, requires_grad=True)
        output = (batch * weight).sum()
        found = since(weight=weight)
        where = "TestActivations.test_saved_inputs_are_named()"
        assert found[f"{where}: batch"].role == "input"
        assert found[f"{where}: batch"].held_by == "MulBackward0.self"
        assert output is not None

    def test_checkpointed_values_are_noted_not_recomputed(self):
        since = Since()
        model = Checkpointed()
        output = model(model.batch())
        found = since.records(model)
        # of 3 * 16 * 32 floats: one that goes into each block, and what comes out of the last
        kept = [each for each in found if each.nbytes == 6144 and each.role == "activation"]
        assert len(kept) == 3
        (note,) = [note for note in since.last.notes if "checkpointed" in note]
        assert note.endswith(
            "values are checkpointed: nothing of them is kept, backward computes them again"
        )
        assert output is not None

    def test_values_that_hooks_packed(self):
        since = Since()
        model = Mlp()
        with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.half, unhalved):
            output = model(torch.zeros(7, 20))
        found = since(model)
        # half of the seven rows of 30 floats
        gelu = found["Mlp: GeluBackward0.self"]
        assert (gelu.dtype, gelu.nbytes, gelu.role) == ("float16", 420, "activation")
        assert gelu.note == "packed by a saved-tensor hook (unhalved)"
        output.sum().backward()
        assert set(since.sizes(model)) == {*parameters(), *gradients(), PACKED}

    def test_values_on_the_cpu(self):
        since = Since()
        model = Mlp()
        with torch.autograd.graph.save_on_cpu():
            output = model(torch.zeros(7, 20))
        found = since.records(model)
        packed = [
            each for each in found if each.note == "packed by a saved-tensor hook (save_on_cpu)"
        ]
        sizes = {"fc1: AddmmBackward0.mat1": 560, "Mlp: GeluBackward0.self": 840}
        assert sizes.items() <= {each.name: each.nbytes for each in packed}.items()
        output.sum().backward()

    @pytest.mark.parametrize("given", ["model", "compiled"])
    def test_compiled_module_activations(self, given):
        # torch keeps empty tensors of its own from each compilation
        torch.compile(torch.sin, backend="aot_eager")(torch.zeros(1))
        since = Since()
        model = Mlp()
        compiled = torch.compile(model, backend="aot_eager")
        output = compiled(torch.zeros(7, 20))
        found = since(model if given == "model" else compiled)
        for name, (role, size) in parameters().items():
            assert (found[name].role, found[name].nbytes) == (role, size)
        # a compiled function uses all parameters: its home is the module that has them all
        saved = [each for each in found.values() if "CompiledFunctionBackward" in each.name]
        assert sorted(each.nbytes for each in saved) == [560, 840, 840]
        assert {each.name.partition(":")[0] for each in saved} == {"Mlp"}
        output.sum().backward()
