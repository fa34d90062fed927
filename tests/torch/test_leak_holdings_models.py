"""What is said to hang below a loss is what the allocator gets back when the loss goes."""

import gc

import pytest
import torch
from census_models import MODELS

from tensorlens.frameworks.torch import Holdings, native

ALLOCATOR = native.install()[0]


def address(tensor):
    return tensor.untyped_storage().data_ptr()


def losses_of(model, count=3):
    return [model(model.batch()).float().pow(2).mean() for _ in range(count)]


def freed_by(losses):
    gc.collect()
    before = ALLOCATOR.allocated()
    losses.clear()
    gc.collect()
    return before - ALLOCATOR.allocated()


@pytest.mark.parametrize("kind", MODELS)
def test_holdings_of_a_model(kind):
    torch.manual_seed(0)
    model = kind()
    losses = losses_of(model)
    holdings = Holdings([address(loss) for loss in losses])
    each = [holdings.below([loss]).bytes for loss in losses]
    below = holdings.below(losses)
    assert each[0] == each[1] == each[2] > 0
    assert sum(each) == below.bytes
    del holdings
    # each loss is a float of its own
    assert freed_by(losses) == below.bytes + 3 * 4


@pytest.mark.parametrize("kind", MODELS)
def test_holdings_of_a_trained_model(kind):
    torch.manual_seed(0)
    model = kind()
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for _ in range(3):
        losses += losses_of(model, 1)
        optimizer.zero_grad()
        losses[-1].backward(retain_graph=True)
        optimizer.step()
    holdings = Holdings([address(loss) for loss in losses])
    below = holdings.below(losses)
    del holdings
    assert freed_by(losses) == below.bytes + 3 * 4 > 12


@pytest.mark.parametrize("kind", MODELS)
def test_every_block_that_is_left_has_its_root(kind):
    torch.manual_seed(0)
    model = kind()
    losses_of(model)
    gc.collect()
    before = {*ALLOCATOR.living().address}
    losses = losses_of(model)
    left = {
        where: size
        for where, size in zip(ALLOCATOR.living().address, ALLOCATOR.living().size, strict=True)
        if where not in before
    }
    found = Holdings([*left]).survivors
    assert {each.address: each.size for each in found} == left
    own = [each for each in found if each.tensors]
    assert {id(tensor) for each in own for tensor in each.tensors} == {*map(id, losses)}
    for each in found:
        if not each.tensors:
            assert [holder.item for holder in each.holders if holder.item in losses]
            assert each.holders[0].references[0].text == "grad_fn"


def test_a_gradient_that_a_hidden_tensor_retains():
    weight = torch.ones(5, requires_grad=True)
    hidden = weight.exp()
    hidden.retain_grad()
    loss = hidden.sin().sum()
    loss.backward(retain_graph=True)
    del hidden
    losses = [loss]
    del loss
    below = Holdings([address(losses[0])]).below(losses)
    assert freed_by(losses) == below.bytes + 4


def test_a_compiled_model():
    model = MODELS[0]()
    compiled = torch.compile(model, backend="aot_eager")
    losses = [compiled(model.batch()).sum() for _ in range(2)]
    below = Holdings([address(loss) for loss in losses]).below(losses)
    assert freed_by(losses) == below.bytes + 8 > 8
    torch._dynamo.reset()


def test_values_that_hooks_pack():
    model = MODELS[0]()
    with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.half, torch.Tensor.float):
        losses = losses_of(model)
    below = Holdings([address(loss) for loss in losses]).below(losses)
    assert freed_by(losses) == below.bytes + 12 > 12


def test_a_result_that_a_hook_packs_as_it_is_holds_itself():
    weight = torch.ones(5, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda each: each, lambda each: each):
        result = weight.exp()
    where = address(result)
    del result
    gc.collect()
    (found,) = Holdings([where]).survivors
    assert found.is_held_unseen
    assert found.size == 20
