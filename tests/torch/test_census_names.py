"""Every tensor has the name that its owner or its holder gives it."""

import copy
import gc

import pytest
import torch
from census_checks import Since, gradients, parameters
from census_models import Mlp, Tied
from torch import nn

import tensorlens

EVER = []


class Holder:
    pass


@pytest.fixture(autouse=True)
def tidy():
    torch.manual_seed(0)
    yield
    EVER.clear()
    torch._dynamo.reset()
    gc.collect()


def names_of(records):
    return {each.name for each in records}


def states(optimizer, *slots):
    owned = parameters().items()
    return {
        f"{optimizer}.{name}.{slot}": ("optimizer", 4 if slot == "step" else size)
        for name, (_, size) in owned
        for slot in slots
    }


def test_parameters_gradients_and_optimizer_state():
    since = Since()
    model = Mlp()
    adam = torch.optim.Adam(model.parameters())
    assert since.sizes(model, adam) == parameters()
    model(torch.zeros(1, 20)).sum().backward()
    assert since.sizes(model, adam) == {**parameters(), **gradients()}
    adam.step()
    expected = {**parameters(), **gradients(), **states("Adam", "step", "exp_avg", "exp_avg_sq")}
    assert since.sizes(model, adam) == expected
    # 4 times 3760 bytes, and 4 steps
    assert since.grown() == 15056
    adam.zero_grad()
    assert not set(since.sizes(model, adam)) & set(gradients())
    del model, adam
    assert since.sizes() == {}
    assert since.grown() == 0


def test_buffer_names():
    since = Since()
    model = nn.Sequential(nn.BatchNorm1d(6))
    assert since.sizes(model) == {
        "0.weight": ("parameter", 24),
        "0.bias": ("parameter", 24),
        "0.running_mean": ("buffer", 24),
        "0.running_var": ("buffer", 24),
        "0.num_batches_tracked": ("buffer", 8),
    }


def test_tied_weights_are_one_row_with_all_names():
    since = Since()
    model = Tied()
    found = since(model)
    assert found["tokens.weight"].names == ("tokens.weight", "head.weight")
    assert "head.weight" not in found
    assert found["places"].names == ("places",)


def test_a_parameter_tied_within_another_model():
    since = Since()
    one, other = Mlp(), Mlp()
    other.fc1 = one.fc1
    found = since(one, other)
    assert found["Mlp.fc1.weight"].names == ("Mlp.fc1.weight", "Mlp#2.fc1.weight")
    assert since.grown() == 3760 + 1240


def test_lists_of_lbfgs_are_below_its_first_parameter():
    since = Since()
    model = nn.Linear(3, 2)
    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=5)
    x = torch.randn(5, 3)

    def closure():
        lbfgs.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    lbfgs.step(closure)
    found = since.sizes(model, lbfgs)
    state = lbfgs.state[model.weight]
    assert len(state["old_dirs"]) >= 2
    for index in range(len(state["old_dirs"])):
        # all 8 elements of weight and bias
        assert found[f"LBFGS.weight.old_dirs[{index}]"] == ("optimizer", 32)
        assert found[f"LBFGS.weight.ro[{index}]"] == ("optimizer", 4)
    assert found["LBFGS.weight.prev_flat_grad"] == ("optimizer", 32)


def test_two_optimizers_of_one_class():
    since = Since()
    model = nn.Linear(3, 2)
    one, other = torch.optim.Adam([model.weight]), torch.optim.Adam([model.bias])
    model(torch.ones(1, 3)).sum().backward()
    one.step()
    other.step()
    found = since.sizes(model, one, other)
    assert found["Adam.weight.exp_avg"] == ("optimizer", 24)
    assert found["Adam#2.bias.exp_avg"] == ("optimizer", 8)
    found = since.sizes(model, gen=one, disc=other)
    assert found["gen.weight.exp_avg"] == ("optimizer", 24)
    assert found["disc.bias.exp_avg"] == ("optimizer", 8)


def test_state_that_several_containers_hold_is_named_by_the_outermost():
    since = Since()
    sgd = torch.optim.SGD([torch.zeros(4, requires_grad=True)], lr=0.1)
    latest = torch.zeros(5)
    sgd.state[sgd.param_groups[0]["params"][0]] = {"history": [latest], "latest": latest}
    assert since.sizes(sgd) == {
        "SGD.param_groups[0].params[0]": ("parameter", 16),
        "SGD.param_groups[0].params[0].latest": ("optimizer", 20),
    }


def test_parameters_that_no_model_has():
    since = Since()
    sgd = torch.optim.SGD([torch.zeros(4, requires_grad=True)], lr=0.1, momentum=0.9)
    sgd.param_groups[0]["params"][0].sum().backward()
    sgd.step()
    expected = {
        "SGD.param_groups[0].params[0]": ("parameter", 16),
        "SGD.param_groups[0].params[0].grad": ("gradient", 16),
        "SGD.param_groups[0].params[0].momentum_buffer": ("optimizer", 16),
    }
    assert since.sizes(sgd) == expected
    assert since.sizes() == expected


def test_a_parameter_list():
    since = Since()
    weights = nn.ParameterList([nn.Parameter(torch.zeros(3))])
    adam = torch.optim.Adam(weights)
    weights[0].sum().backward()
    adam.step()
    assert since.sizes(weights, adam) == {
        "0": ("parameter", 12),
        "0.grad": ("gradient", 12),
        "Adam.0.step": ("optimizer", 4),
        "Adam.0.exp_avg": ("optimizer", 12),
        "Adam.0.exp_avg_sq": ("optimizer", 12),
    }


def test_tensor_learning_rate():
    since = Since()
    model = nn.Linear(3, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))
    expected = {
        "weight": ("parameter", 24),
        "bias": ("parameter", 8),
        "SGD.defaults['lr']": ("optimizer", 4),
    }
    assert since.sizes(model, sgd) == expected
    assert since.sizes(model, sgd) == expected


def test_nested_state_of_an_optimizer():
    since = Since()
    model = nn.Linear(3, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    tensors = [torch.zeros(size) for size in range(2, 6)]
    sgd.state[model.weight] = {"a": {"b": [tensors[0], (tensors[1],)]}, "q": {3: tensors[2]}}
    sgd.state["everywhere"] = {"x": tensors[3]}
    del tensors
    assert since.sizes(model, sgd) == {
        "weight": ("parameter", 24),
        "bias": ("parameter", 8),
        "SGD.weight.a.b[0]": ("optimizer", 8),
        "SGD.weight.a.b[1][0]": ("optimizer", 12),
        "SGD.weight.q[3]": ("optimizer", 16),
        "SGD['everywhere'].x": ("optimizer", 20),
    }


def test_an_attribute_of_an_optimizer():
    since = Since()
    model = nn.Linear(3, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    sgd.trust = [torch.zeros(6)]
    assert since.sizes(model, sgd)["SGD.trust[0]"] == ("optimizer", 24)


def test_a_gradient_scaler():
    since = Since()
    model = nn.Linear(3, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(1, 3)).sum()).backward()
    scaler.step(sgd)
    scaler.update()
    found = since.sizes(model, sgd)
    assert found["test_a_gradient_scaler(): scaler._scale"] == ("other", 4)
    assert found["test_a_gradient_scaler(): scaler._growth_tracker"] == ("other", 4)
    assert since.sizes(model, sgd, scaler=scaler)["scaler._scale"] == ("other", 4)


def test_an_averaged_model():
    since = Since()
    model = Mlp()
    average = torch.optim.swa_utils.AveragedModel(model)
    found = since.sizes(model)
    prefix = "test_an_averaged_model(): average."
    assert found == {
        **parameters(),
        **parameters(prefix + "module."),
        prefix + "n_averaged": ("buffer", 8),
    }
    expected = {**parameters(), **parameters("ema.module."), "ema.n_averaged": ("buffer", 8)}
    assert since.sizes(model, ema=average) == expected


def test_copies_of_weights_in_a_dict():
    since = Since()
    model = nn.Linear(3, 2)
    best = copy.deepcopy(model.state_dict())
    found = since.sizes(model)
    assert found["test_copies_of_weights_in_a_dict(): best['weight']"] == ("other", 24)
    assert since.sizes(model, best=best)["best['bias']"] == ("other", 8)


@pytest.mark.parametrize("deep", [False, True])
def test_attributes_of_a_module(deep):
    since = Since()
    inner = nn.Linear(3, 2)
    inner.plain = torch.zeros(4)
    inner.several = [torch.zeros(5), torch.zeros(6)]
    inner.table = {"k": torch.zeros(7), "n": {"z": torch.zeros(8)}}
    model = nn.Sequential(nn.Identity(), inner) if deep else inner
    del inner
    prefix = "1." if deep else ""
    assert since.sizes(model) == {
        f"{prefix}weight": ("parameter", 24),
        f"{prefix}bias": ("parameter", 8),
        f"{prefix}plain": ("other", 16),
        f"{prefix}several[0]": ("other", 20),
        f"{prefix}several[1]": ("other", 24),
        f"{prefix}table['k']": ("other", 28),
        f"{prefix}table['n']['z']": ("other", 32),
    }


def test_a_key_value_cache():
    transformers = pytest.importorskip("transformers")
    since = Since()
    cache = transformers.DynamicCache()
    for layer in (0, 1):
        cache.update(torch.zeros(1, 1, 5, 4), torch.zeros(1, 1, 5, 4), layer)
    where = "test_a_key_value_cache(): cache"
    # one head of 4 for each of 5 tokens
    expected = [f"layers[{layer}].{part}" for layer in (0, 1) for part in ("keys", "values")]
    assert since.sizes() == {f"{where}.{part}": ("other", 80) for part in expected}
    assert since.sizes(kv=cache) == {f"kv.{part}": ("other", 80) for part in expected}
    assert since.grown() == 320


class TestHolders:
    def test_a_list_that_was_added(self):
        since = Since()
        past = [torch.zeros(size) for size in (1, 2)]
        reporter = tensorlens.MemReporter().add(history=past)
        assert {"history[0]", "history[1]"} <= names_of(reporter.snapshot().tensors)
        assert since.sizes(history=past) == {"history[0]": ("other", 4), "history[1]": ("other", 8)}

    def test_a_tensor_that_was_added(self):
        since = Since()
        ours = torch.zeros(5)
        assert since.sizes(mine=ours) == {"mine": ("other", 20)}

    def test_held_by_a_local(self):
        since = Since()
        history = [torch.zeros(3)]
        where = "TestHolders.test_held_by_a_local()"
        assert since.sizes() == {f"{where}: history[0]": ("other", 12)}
        inputs = history.pop()
        assert since.sizes() == {f"{where}: inputs": ("other", 12)}
        del inputs
        assert since.sizes() == {}

    def test_held_by_a_global(self):
        since = Since()
        EVER.append(torch.zeros(9))
        assert since.sizes() == {f"{__name__}.EVER[0]": ("other", 36)}

    def test_held_by_an_attribute(self):
        since = Since()
        holder = Holder()
        holder.best = torch.zeros(3)
        where = "TestHolders.test_held_by_an_attribute()"
        assert since.sizes() == {f"{where}: holder.best": ("other", 12)}
        del holder.best
        assert since.sizes() == {}

    def test_an_attribute_of_a_class(self):
        since = Since()
        Holder.shared = torch.zeros(3)
        try:
            assert since.sizes() == {f"{__name__}.Holder.shared": ("other", 12)}
        finally:
            del Holder.shared

    def test_held_by_a_closure(self):
        since = Since()

        def make():
            kept = torch.zeros(11)
            return lambda: kept

        function = make()
        (name,) = since.sizes()
        assert name.startswith("closure of ") and name.endswith("make.<locals>.<lambda>: kept")
        del function
        assert since.sizes() == {}

    def test_held_by_a_generator(self):
        since = Since()

        def batches():
            batch = torch.zeros(12)
            yield
            del batch

        running = batches()
        next(running)
        (name,) = since.sizes()
        assert name.endswith("batches(): batch")
        running.close()
        assert since.sizes() == {}


class TestModels:
    def test_several_models(self):
        since = Since()
        one, other = Mlp(), Mlp()
        both = {**parameters("Mlp."), **parameters("Mlp#2.")}
        assert since.sizes(one, other) == both
        assert since.sizes([one, other]) == both
        assert since.sizes(gen=one, disc=other) == {**parameters("gen."), **parameters("disc.")}
        mapped = since.sizes({"gen": one, "disc": other})
        assert mapped == {**parameters("gen."), **parameters("disc.")}

    def test_models_by_keyword(self):
        since = Since()
        model = Mlp()
        assert since.sizes(model=model) == parameters()

    def test_found_but_not_given(self):
        since = Since()
        net = Mlp()
        where = "TestModels.test_found_but_not_given(): "
        assert since.sizes() == parameters(f"{where}net.")
        holder = Holder()
        holder.net = net
        del net
        assert since.sizes() == parameters(f"{where}holder.net.")

    def test_tensors_of_a_found_module(self):
        since = Since()
        net = nn.Sequential(nn.Identity())
        net.plain, net[0].inner = torch.zeros(3), torch.zeros(4)
        assert since.sizes() == {
            "TestModels.test_tensors_of_a_found_module(): net.plain": ("other", 12),
            "Sequential.0.inner": ("other", 16),
        }

    def test_model_inside_itself(self):
        since = Since()
        model = nn.Linear(3, 2)
        model.inner = nn.Linear(2, 1, bias=False)
        model.inner.outer = model
        found = since(model)
        assert {name: each.names for name, each in found.items()} == {
            "weight": ("weight",),
            "bias": ("bias",),
            "inner.weight": ("inner.weight",),
        }
        model.inner = None


def test_no_name_is_a_number_and_none_outlives_its_tensor():
    since = Since()
    for size in range(1, 5):
        text = f"round {size}"
        holder = {text: torch.zeros(size)}
        where = "test_no_name_is_a_number_and_none_outlives_its_tensor()"
        assert since.sizes() == {f"{where}: holder['{text}']": ("other", 4 * size)}
        del holder
        assert since.sizes() == {}
