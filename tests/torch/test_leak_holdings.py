"""Which Python objects, or which graph, the memory that is left belongs to."""

import gc
import threading

import numpy as np
import pytest
import torch
from census_models import Mlp, Square
from torch.utils.checkpoint import checkpoint

from tensorlens.frameworks.torch import Holdings


@pytest.fixture(autouse=True)
def tidy():
    torch.manual_seed(0)
    yield
    gc.collect()


def address(tensor):
    return tensor.untyped_storage().data_ptr()


def survivor(where):
    (found,) = Holdings([where]).survivors
    return found


def texts(holder):
    return [reference.text for reference in holder.references]


class TestTensors:
    def test_tensor_held_by_python(self):
        kept = [torch.zeros(5, 4)]
        found = survivor(address(kept[0]))
        assert [each is kept[0] for each in found.tensors] == [True]
        assert (found.size, found.shown, found.shape, found.dtype) == (80, 80, (5, 4), "float32")
        assert (found.role, found.grad_fn) == ("other", None)
        assert found.name.endswith("kept[0]")
        assert (found.holders, found.arrays) == ((), ())

    def test_holdings_in_order_of_addresses(self):
        kept = [torch.zeros(size) for size in (1, 2, 3)]
        found = Holdings([address(kept[index]) for index in (2, 0, 1)]).survivors
        assert [each.size for each in found] == [12, 4, 8]

    def test_a_small_view_of_a_large_storage(self):
        views = [torch.zeros(1000)[3:5]]
        found = survivor(address(views[0]))
        assert (found.size, found.shown, found.shape) == (4000, 8, (2,))
        assert [each is views[0] for each in found.tensors] == [True]

    def test_holdings_list_all_aliases(self):
        base = torch.zeros(6)
        kept = {"view": base.view(2, 3), "detached": base.detach()}
        found = survivor(address(base))
        expected = {id(base), *map(id, kept.values())}
        assert {id(each) for each in found.tensors} == expected
        assert found.shown == 24

    def test_roles_and_names_of_a_model_and_an_optimizer(self):
        model = Mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(model.batch()).sum().backward()
        optimizer.step()
        weight = model.fc1.weight
        momentum = optimizer.state[weight]["momentum_buffer"]
        found = Holdings([address(each) for each in (weight, weight.grad, momentum)]).survivors
        assert [each.role for each in found] == ["parameter", "gradient", "optimizer"]
        assert [each.size for each in found] == [2400, 2400, 2400]
        assert found[0].name.endswith("fc1.weight")
        assert found[2].name.endswith("fc1.weight.momentum_buffer")
        (holder,) = found[1].holders
        assert holder.item is weight
        assert texts(holder) == ["grad"]

    def test_parts_of_a_sparse_tensor(self):
        values = torch.ones(3)
        sparse = torch.sparse_coo_tensor(torch.tensor([[0, 1, 2]]), values, (5,))
        where = address(values)
        del values
        found = survivor(where)
        assert found.tensors == ()
        (holder,) = found.holders
        assert holder.item is sparse
        assert texts(holder) == ["values"]

    def test_freed_address_has_no_holding(self):
        where = address(torch.zeros(100_000))
        found = survivor(where)
        assert found.is_held_unseen
        assert found.size == 0


class TestGraph:
    def test_tensor_held_by_a_graph_alone(self):
        weight = torch.ones(5, requires_grad=True)
        batch = torch.ones(5)
        loss = (weight * batch).exp().sum()
        where = address(batch)
        del batch
        found = survivor(where)
        assert found.tensors == ()
        (holder,) = found.holders
        assert holder.item is loss
        assert texts(holder) == ["grad_fn", "MulBackward0.other"]
        assert [reference.kind for reference in holder.references] == ["graph", "saved"]
        assert [reference.type for reference in holder.references] == ["SumBackward0", "Tensor"]

    def test_objects_that_a_look_left_behind_are_not_pythons(self):
        weight = torch.ones(5, requires_grad=True)
        batch = torch.ones(5)
        loss = (weight * batch).sum()
        where = address(batch)
        del batch
        # brings the saved tensor into Python, where its object stays
        loss.grad_fn.next_functions[0][0]._raw_saved_other.data  # noqa: B018
        first, second = survivor(where), survivor(where)
        assert (first.tensors, second.tensors) == ((), ())
        assert [texts(each) for each in second.holders] == [["grad_fn", "MulBackward0.other"]]

    def test_graph_with_two_roots(self):
        weight = torch.ones(5, requires_grad=True)
        hidden = weight.exp()
        where = address(hidden)
        first, second = hidden.sum(), (hidden * hidden).sum()
        del hidden
        found = survivor(where)
        assert {id(each.item) for each in found.holders} == {id(first), id(second)}

    def test_tensor_held_by_python_and_a_graph(self):
        weight = torch.ones(5, requires_grad=True)
        batch = torch.ones(5)
        loss = (weight * batch).sum()
        found = survivor(address(batch))
        assert [each is batch for each in found.tensors] == [True]
        assert [each.item is loss for each in found.holders] == [True]

    def test_a_tensor_is_not_held_by_itself(self):
        result = torch.ones(5, requires_grad=True).exp()
        found = survivor(address(result))
        assert [each is result for each in found.tensors] == [True]
        assert (found.holders, found.grad_fn) == ((), "ExpBackward0")

    def test_a_node_that_python_holds(self):
        weight = torch.ones(5, requires_grad=True)
        batch = torch.ones(5)
        node = (weight * batch).grad_fn
        where = address(batch)
        del batch
        (holder,) = survivor(where).holders
        assert holder.item is node
        assert texts(holder) == ["MulBackward0.other"]

    def test_a_leaf_that_only_the_graph_holds(self):
        leaf = torch.ones(5, requires_grad=True)
        loss = leaf.sum()
        where = address(leaf)
        del leaf
        (holder,) = survivor(where).holders
        assert holder.item is loss
        assert texts(holder) == ["grad_fn", "AccumulateGrad.variable"]

    def test_tensor_packed_by_a_hook(self):
        weight = torch.ones(5, requires_grad=True)
        packed = []

        def unpack(half):
            return half.float()

        def pack(tensor):
            packed.append(tensor.half())
            return packed[-1]

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            loss = weight.sin().sum()
        where = address(packed.pop())
        found = survivor(where)
        assert found.tensors == ()
        (holder,) = found.holders
        assert holder.item is loss
        assert texts(holder) == ["grad_fn", "SinBackward0.self (packed by TestGraph)"]
        assert found.size == 10

    def test_an_attribute_of_ctx(self):
        loss = Square.apply(torch.ones(5, requires_grad=True)).sum()
        ctx = loss.grad_fn.next_functions[0][0]
        where = address(ctx.extra)
        del ctx
        found = survivor(where)
        assert found.tensors == ()
        (holder,) = found.holders
        assert holder.item is loss
        assert texts(holder) == ["grad_fn", "SquareBackward.extra (ctx)"]

    def test_a_ctx_that_python_holds(self):
        ctx = Square.apply(torch.ones(5, requires_grad=True)).grad_fn
        (holder,) = survivor(address(ctx.extra)).holders
        assert holder.item is ctx

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_the_input_of_a_checkpoint(self, reentrant):
        weight = torch.ones(5, requires_grad=True)
        given = weight.neg()
        where = address(given)
        loss = checkpoint(lambda each: each.exp().sin(), given, use_reentrant=reentrant).sum()
        del given
        found = survivor(where)
        assert found.tensors == ()
        (holder,) = found.holders
        assert holder.item is loss
        assert texts(holder) == ["grad_fn", "checkpoint input[0]"]

    def test_the_graph_of_a_gradient(self):
        leaf, other = (torch.ones(5, requires_grad=True) for _ in range(2))
        factor = torch.ones(5)
        where = address(factor)
        leaf.grad = other * factor
        del factor
        found = survivor(where)
        assert found.tensors == ()
        (holder,) = found.holders
        assert holder.item is leaf
        assert texts(holder) == ["grad", "grad_fn", "MulBackward0.other"]
        below = Holdings([where]).below([leaf])
        # the factor, and the gradient itself
        assert below.bytes == 40
        assert [each.text for each in below.references] == [
            "grad",
            "grad_fn",
            "2 saved activations",
        ]

    def test_a_cycle_that_nothing_can_free(self):
        leaf = torch.ones(5, requires_grad=True)
        where = address(leaf)
        leaf.exp().sum().backward(create_graph=True)
        del leaf
        gc.collect()
        found = survivor(where)
        assert (found.tensors, found.holders) == ((), ())
        assert found.is_held_unseen
        (left,) = (each for each in gc.get_objects() if _is_at(each, where))
        left.grad = None

    def test_a_hook_of_a_tensor_that_keeps_another(self):
        kept = torch.zeros(5)
        where = address(kept)
        weight = torch.ones(3, requires_grad=True)
        weight.register_hook(lambda grad, kept=kept: None)
        found = survivor(where)
        assert [each is kept for each in found.tensors] == [True]


def _is_at(item, where):
    return type(item) is torch.Tensor and address(item) == where


class TestArrays:
    @pytest.mark.parametrize("export", [torch.Tensor.numpy, np.asarray])
    def test_an_array_that_holds_a_tensor(self, export):
        arrays = [export(torch.zeros(5))]
        found = survivor(arrays[0].__array_interface__["data"][0])
        assert [each is arrays[0] for each in found.arrays] == [True]
        assert (found.tensors, found.size) == ((), 20)

    def test_dlpack_array(self):
        arrays = [{"latest": np.from_dlpack(torch.zeros(5))}]
        found = survivor(arrays[0]["latest"].__array_interface__["data"][0])
        assert [each is arrays[0]["latest"] for each in found.arrays] == [True]
        assert (found.tensors, found.size) == ((), 20)
        assert not found.is_held_unseen

    def test_a_view_in_a_tuple(self):
        tensor = torch.zeros(50)
        kept = [("row", (tensor.numpy()[7:9],))]
        where = address(tensor)
        del tensor
        found = survivor(where)
        assert [each is kept[0][1][0] for each in found.arrays] == [True]
        # two of fifty floats
        assert (found.tensors, found.size, found.shown) == ((), 200, 8)

    def test_arrays_beside_the_tensor_that_they_show(self):
        first = torch.zeros(50).numpy()
        kept = [first, first[3:], first[4:], first.base]
        found = survivor(address(kept[3]))
        assert [each is kept[3] for each in found.tensors] == [True]
        assert {id(each) for each in found.arrays} == {*map(id, kept[:3])}
        del found
        kept.pop()
        assert survivor(first.__array_interface__["data"][0]).tensors == ()

    def test_arrays_of_other_memory(self):
        kept = [np.zeros(5), np.zeros(9)[2:]]
        tensor = torch.zeros(5)
        assert survivor(address(tensor)).arrays == ()
        assert len(kept) == 2


class TestBelow:
    def test_the_graph_of_each_loss(self):
        model = Mlp()
        losses = [model(model.batch()).pow(2).sum() for _ in range(3)]
        holdings = Holdings([address(loss) for loss in losses])
        # 7 rows of 20, of 30 before and after gelu and after tanh, and of 10 for pow
        # (gelu saves what goes into it, tanh and the second layer what tanh gave: one storage)
        each = 4 * 7 * (20 + 30 + 30 + 10)
        assert each == 2520
        below = holdings.below([losses[0]])
        assert (below.bytes, below.tensors) == (each, 4)
        assert [reference.text for reference in below.references] == [
            "grad_fn",
            "4 saved activations",
        ]
        assert below.references[1].length == 4
        everything = holdings.below(losses)
        assert (everything.bytes, everything.tensors) == (3 * each, 12)

    def test_below_a_convolution(self):
        convolution = torch.nn.Conv2d(3, 8, 3)
        losses = [torch.relu(convolution(torch.zeros(2, 3, 10, 10))).sum() for _ in range(2)]
        holdings = Holdings([address(loss) for loss in losses])
        # the input, and what relu gave
        each = 4 * 2 * (3 * 10 * 10 + 8 * 8 * 8)
        assert holdings.below([losses[1]]).bytes == each
        assert holdings.below(losses).bytes == 2 * each

    def test_below_a_scalar(self):
        numbers = [torch.zeros(())]
        below = Holdings([address(numbers[0])]).below(numbers)
        assert (below.bytes, below.tensors, below.references) == (0, 0, ())

    def test_after_backward_the_graph_is_empty(self):
        model = Mlp()
        loss = model(model.batch()).sum()
        loss.backward()
        assert Holdings([address(loss)]).below([loss]).bytes == 0

    def test_tensor_held_by_python_is_not_below(self):
        weight = torch.ones(5, requires_grad=True)
        batch, hidden = torch.ones(5), torch.ones(5)
        loss = ((weight * batch) * hidden).sum()
        # what the first of them gave is saved by the second
        holdings = Holdings([address(loss)])
        assert holdings.below([loss]).bytes == 0
        del batch
        assert Holdings([address(loss)]).below([loss]).bytes == 20

    def test_shared_by_two_roots(self):
        weight = torch.ones(5, requires_grad=True)
        shared = weight.exp()
        first, second = shared.sum(), shared.neg().sum()
        del shared
        holdings = Holdings([address(first), address(second)])
        assert holdings.below([first]).bytes == 0
        assert holdings.below([first], group=[first, second]).bytes == 20
        assert holdings.below([first, second]).bytes == 20

    def test_shared_with_a_freed_root(self):
        weight = torch.ones(5, requires_grad=True)
        shared = weight.exp()
        first, second = shared.sum(), shared.neg().sum()
        del shared
        assert Holdings([address(first)]).below([first]).bytes == 0
        del second
        assert Holdings([address(first)]).below([first]).bytes == 20

    def test_a_chain_of_sums(self):
        weight = torch.ones(5, requires_grad=True)
        total = torch.zeros(())
        for _ in range(4):
            total = total + weight.exp().sum()
        below = Holdings([address(total)]).below([total])
        assert (below.bytes, below.tensors) == (80, 4)

    def test_below_ctx_hooks_and_checkpoints(self):
        weight = torch.ones(5, requires_grad=True)
        # the argument, twice it and an attribute; the argument is the parameter
        loss = Square.apply(weight).sum()
        assert Holdings([address(loss)]).below([loss]).bytes == 40
        with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.half, torch.Tensor.float):
            loss = weight.sin().sum()
        assert Holdings([address(loss)]).below([loss]).bytes == 10

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_below_a_checkpoint(self, reentrant):
        weight = torch.ones(5, requires_grad=True)

        def region(each):
            return each.exp().sin()

        loss = checkpoint(
            region, weight.neg(), use_reentrant=reentrant, preserve_rng_state=False
        ).sum()
        assert Holdings([address(loss)]).below([loss]).bytes == 20

    def test_a_leaf_and_its_gradient(self):
        leaf = torch.ones(5, requires_grad=True)
        loss = leaf.sum()
        loss.backward()
        del leaf
        assert Holdings([address(loss)]).below([loss]).bytes == 40

    def test_below_an_earlier_tensor(self):
        kept = torch.zeros(5)
        with pytest.raises(KeyError):
            Holdings([address(kept)]).below([torch.zeros(5)])


class TestUnchanged:
    def test_holdings_keep_nothing_alive(self):
        model = Mlp()
        loss = model(model.batch()).sum()
        holdings = Holdings([address(loss)])
        gone = threading.Event()
        import weakref

        weakref.finalize(loss, gone.set)
        weakref.finalize(model, gone.set)
        del model
        gc.collect()
        assert gone.is_set()
        gone.clear()
        holdings.survivors.clear()
        del loss
        gc.collect()
        assert gone.is_set()

    def test_no_hook_runs_and_no_gradient_changes(self):
        calls = []
        weight = torch.ones(5, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: tensor, lambda packed: calls.append(packed) or packed
        ):
            loss = weight.exp().sum()
        loss.register_hook(calls.append)
        Holdings([address(loss)]).below([loss])
        assert calls == []
        loss.backward()
        assert torch.equal(weight.grad, torch.ones(5).exp())

    def test_under_inference_mode_and_with_modes(self):
        kept = [torch.zeros(5)]
        with torch.inference_mode(), torch.device("meta"):
            found = survivor(address(kept[0]))
        assert [each is kept[0] for each in found.tensors] == [True]
