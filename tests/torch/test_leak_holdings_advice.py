"""One line of advice for each cause that the path proves, and none where it does not."""

import pytest

from tensorlens.leaks import Example, advice
from tensorlens.records import Reference, ReferencePath


def way(*references, cut=False):
    return ReferencePath(tuple(references), cut)


def example(shape=(16,), grad_fn=None, below=0, storage=None):
    nbytes = 4
    for length in shape:
        nbytes *= length
    return Example("x", "float32", shape, nbytes, storage or nbytes, grad_fn, 1, below)


def attribute(text, kind="attribute"):
    return Reference(kind, f"{text} ({kind})")


def item(length, index=None, container="list", limit=None):
    index = length - 1 if index is None else index
    return Reference("item", f"{container}[{index}]", "", length, limit)


TRAINER = attribute("trainer", "global")
HISTORY = attribute("Trainer.history")
LOSS = Reference("item", "dict['loss']", "Tensor", 1)
GRAPH = (Reference("graph", "grad_fn"), Reference("saved", "GeluBackward0.self"))
CLEAR = "clear Trainer.history when it is no longer needed, or cap its size: deque(maxlen=...)"


def test_a_loss_with_its_graph():
    found = advice.advice([way(TRAINER, HISTORY, item(9), LOSS)], example((), "MeanBackward0", 400))
    assert found == (
        "store loss.item() instead of the tensor, which keeps the autograd graph of its step"
    )


def test_an_output_with_its_graph():
    found = advice.advice([way(TRAINER, HISTORY, item(9))], example((7, 10), "AddmmBackward0", 400))
    assert found.startswith(
        "keep tensor.detach(), or compute it under torch.no_grad(): its grad_fn"
    )


def test_advice_for_a_graph():
    found = advice.advice([way(TRAINER, HISTORY, item(9), LOSS, *GRAPH)], example())
    assert found.startswith("keep loss.detach(), or loss.item() of a number: its grad_fn")


def test_a_number_whose_graph_is_empty():
    found = advice.advice([way(TRAINER, HISTORY, item(9), LOSS)], example((), "MeanBackward0"))
    assert found == (
        "store loss.item() instead of the tensor, which keeps the autograd graph of its step"
    )


@pytest.mark.parametrize("kind, text", [("global", "total"), ("local", "train(): total")])
def test_advice_for_a_running_sum(kind, text):
    found = advice.advice([way(attribute(text, kind))], example((), "AddBackward0", 400))
    assert (
        found
        == "write total = total.detach() after each step: it keeps the graphs of all steps before"
    )


def test_a_state_that_is_carried_on_is_named_and_not_what_comes_with_it():
    # out, h = rnn(x, h): out is the variable that holds the graph, h what carries it on
    found = advice.advice(
        [way(attribute("out", "global"))],
        example((4, 16), "TransposeBackward0", 400),
        advice.Facts(carried="h"),
    )
    assert found == "detach() h after each step: it keeps the graphs of all steps before"


def test_advice_for_recurrent_state():
    found = advice.advice(
        [way(attribute("net", "local"), attribute("Net.h"), *GRAPH)],
        example((2, 3), "TanhBackward0", 400),
        advice.Facts(carried="self.h"),
    )
    assert found == (
        "write self.h = self.h.detach() after each step: it keeps the graphs of all steps before"
    )


def test_the_latest_in_a_variable_does_not_count():
    paths = [way(attribute("train(): loss", "local")), way(TRAINER, HISTORY, item(9))]
    assert advice.advice(paths, example()) == CLEAR


def test_a_list_that_grows():
    assert advice.advice([way(TRAINER, HISTORY, item(9))], example()) == CLEAR
    local = attribute("train(): kept", "local")
    assert advice.advice([way(local, item(9))], example()).startswith("clear kept when")
    keys = Reference("item", "dict['step 9']", "Tensor", 9)
    bounded = "clear Trainer.history when it is no longer needed, or cap its size"
    assert advice.advice([way(TRAINER, HISTORY, keys)], example()) == bounded


def test_of_two_long_lists_the_one_whose_last_item_leads_on():
    layers, cache = attribute("Net.layers"), attribute("Layer.cache")
    found = advice.advice([way(TRAINER, layers, item(9, 3), cache, item(40))], example())
    assert found.startswith("clear Layer.cache when")
    assert advice.advice([way(TRAINER, layers, item(9, 3), cache, item(40, 2))], example()) is None
    assert advice.advice([way(TRAINER, layers, item(9), cache, item(40))], example()) is None


@pytest.mark.parametrize(
    "place",
    [
        item(9, container="deque", limit=9),
        item(1),
        item(9, container="tuple"),
        Reference("weakref callback", "weakref callback"),
    ],
)
def test_no_advice_for_bounded_places(place):
    assert advice.advice([way(TRAINER, HISTORY, place)], example()) is None


def test_fewer_items_than_steps():
    path = way(TRAINER, HISTORY, item(5))
    assert advice.advice([path], example(), advice.Facts(steps=6)) is None
    assert advice.advice([path], example(), advice.Facts(steps=5)) == CLEAR


def test_no_advice_where_a_holder_is_not_known():
    known = way(TRAINER, HISTORY, item(9))
    assert advice.advice([], example()) is None
    assert advice.advice([known, way(Reference("unknown", "a holder outside"))], example()) is None
    assert advice.advice([known, way(attribute("Trainer.last"), cut=True)], example()) is None
    # whoever holds the container, its items can go
    assert advice.advice([known, way(TRAINER, HISTORY, item(9), cut=True)], example()) == CLEAR
    assert advice.advice([known, way(attribute("Trainer.last"))], example()) is None


def test_advice_for_two_causes():
    other = way(TRAINER, attribute("Trainer.log"), item(9))
    found = advice.advice([way(TRAINER, HISTORY, item(9)), other], example())
    assert found == f"{CLEAR}; {CLEAR.replace('history', 'log')}"


def test_a_small_view():
    paths = [way(TRAINER, HISTORY, item(9))]
    small = example((2,), storage=4096)
    assert (
        advice.advice(paths, small)
        == "keep a .clone() of the view: its 8 B keep a storage of 4.00 KiB"
    )
    assert advice.advice(paths, small, advice.Facts(is_in_array=True)).startswith(
        "keep a .copy() of the view"
    )
    assert advice.advice(paths, example((600,), storage=4096)) == CLEAR
    made = example((2,), "SliceBackward0", storage=4096)
    assert advice.advice(paths, made).startswith("keep a .detach().clone() of the view")


def test_advice_for_exceptions():
    kept = Reference("exception", "exception kept in errors", "ValueError")
    path = way(kept, Reference("traceback", "traceback"), attribute("forward(): x", "frame"))
    assert advice.advice([path], example()).startswith("drop each exception once it is handled")


def test_advice_for_caches():
    def cached(limit):
        cache = Reference("cache", f"embed (lru_cache, maxsize={limit})", "", 9, limit)
        return [way(attribute("embed", "global"), cache)]

    expected = "give the cache of embed() a maxsize, or call embed.cache_clear()"
    assert advice.advice(cached(None), example()) == expected
    assert advice.advice(cached(128), example()) is None


def test_advice_for_hooks():
    hook = Reference("hook", "fc1 forward hook", "function", 9)
    closure = attribute("watch(): seen", "closure")
    found = advice.advice([way(attribute("model", "global"), hook, closure)], example())
    assert found == (
        "register the fc1 forward hook once, or call remove() on the handle that registering "
        "returns"
    )
    once = Reference("hook", "fc1 forward hook", "function", 1)
    assert advice.advice([way(once, closure)], example()) is None
    assert advice.advice([way(once, closure, item(9))], example()).startswith("clear seen when")


def test_advice_for_queues():
    def path(text, limit=None):
        return [way(TRAINER, Reference("queue", text, "", 9, limit))]

    assert advice.advice(path("Queue[3]"), example()).endswith("or give it a maxsize")
    assert advice.advice(path("SimpleQueue"), example()).endswith("or use queue.Queue(maxsize=...)")
    assert advice.advice(path("Queue[3]", 9), example()) is None


def test_advice_for_optimizers():
    groups = attribute("SGD.param_groups")
    inside = (Reference("item", "dict['params']", "list", 7), item(1))
    state = Reference("optimizer state", "Adam.state (optimizer state)")
    found = advice.advice(
        [way(attribute("optimizer", "global"), groups, item(9), *inside)], example()
    )
    assert found == "call add_param_group() once, not in each step"
    for kept in (groups, state):
        found = advice.advice([way(TRAINER, HISTORY, item(9), kept, item(1, 0))], example())
        assert found.startswith("make the optimizer once, before the loop")
    found = advice.advice([way(attribute("optimizer", "global"), state)], example())
    assert found.startswith("make the parameters once: the optimizer keeps the state")


def test_advice_for_default_arguments():
    default = Reference("default", "step(history=...) (default)")
    found = advice.advice([way(default, item(9))], example())
    assert found.startswith("write step(history=None) and make the container in the call")


def test_gradients_with_a_graph():
    weight = attribute("fc1.weight")
    found = advice.advice([way(TRAINER, weight, Reference("attribute", "grad"), *GRAPH)], example())
    assert found.startswith("set .grad to None after use")


def test_a_tensor_that_a_larger_one_replaces():
    facts = advice.Facts(5, is_replaced=True)
    found = advice.advice([way(attribute("Attention.keys"))], example(), facts)
    assert found.startswith("cap the size of Attention.keys, which ")
    assert advice.advice([way(attribute("buffer", "closure"))], example(), facts).startswith(
        "cap the size of buffer,"
    )


def test_one_of_many_that_a_larger_one_replaces():
    assert (
        advice.advice(
            [way(TRAINER, HISTORY, item(9))], example(), advice.Facts(5, is_replaced=True)
        )
        is None
    )
