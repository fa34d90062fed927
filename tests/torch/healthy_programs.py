"""Small programs that keep memory for good reasons: none of them leaks."""

import collections
import contextlib
import copy
import functools
import gc
import queue
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

HEALTHY: dict[str, Callable[[], Callable]] = {}


def healthy(make):
    """Add a program: a function that returns the function that does one step."""
    HEALTHY[make.__name__] = make
    return make


def trained(net, optimizer):
    def step():
        optimizer.zero_grad()
        loss = net(torch.ones(4, 3)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def small():
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1))


@healthy
def adam_makes_its_state():
    net = small()
    return trained(net, torch.optim.Adam(net.parameters()))


@healthy
def momentum():
    net = small()
    return trained(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))


@healthy
def learning_rate_schedules():
    net = small()
    optimizer = torch.optim.AdamW(net.parameters())
    schedules = [
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
        torch.optim.lr_scheduler.StepLR(optimizer, 2),
    ]
    train, rates = trained(net, optimizer), []

    def step():
        train()
        for schedule in schedules:
            schedule.step()
        rates.append(schedules[0].get_last_lr())

    return step


@healthy
def tensors_as_learning_rates():
    net = small()
    optimizer = torch.optim.Adam(net.parameters(), lr=torch.tensor(0.1), foreach=False)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    train = trained(net, optimizer)

    def step():
        train()
        schedule.step()

    return step


@healthy
def bounded_deque_that_fills():
    recent = collections.deque(maxlen=100)
    return lambda: recent.append(torch.zeros(8))


@healthy
def bounded_deque_of_dicts():
    recent = collections.deque(maxlen=100)
    return lambda: recent.append({"loss": torch.zeros(8), "pair": (torch.ones(2), None)})


@healthy
def bounded_deque_that_is_full():
    recent = collections.deque((torch.zeros(8) for _ in range(50)), maxlen=50)
    return lambda: recent.append(torch.zeros(8))


@healthy
def last_three():
    recent = collections.deque(maxlen=3)
    return lambda: recent.append(torch.zeros(8))


@healthy
def bounded_lru_cache():
    @functools.lru_cache(maxsize=64)
    def mask(length):
        return torch.ones(length)

    return lambda number: mask(number + 1)


@healthy
def cache_that_is_hit():
    @functools.cache
    def mask(length):
        return torch.ones(length)

    return lambda number: mask(number % 3)


@healthy
def bounded_queue_that_fills():
    waiting = queue.Queue(maxsize=50)
    return lambda: waiting.put(torch.zeros(8))


@healthy
def queue_that_is_emptied():
    waiting = queue.Queue()

    def step():
        waiting.put(torch.zeros(8))
        if waiting.qsize() > 2:
            waiting.get()

    return step


@healthy
def places_made_before():
    places = [None] * 100

    def step(number):
        places[number] = torch.zeros(8)

    return step


@healthy
def places_filled_from_the_end():
    places = [None] * 100

    def step(number):
        places[-1 - number] = torch.zeros(8)

    return step


@healthy
def places_with_numbers_before():
    places = [0] * 100

    def step(number):
        places[number] = torch.zeros(8)

    return step


@healthy
def places_in_a_dict():
    places = dict.fromkeys(range(100))

    def step(number):
        places[number] = torch.zeros(8)

    return step


class Replay:
    def __init__(self, size):
        self.places, self.at = [None] * size, 0

    def add(self, value):
        self.places[self.at % len(self.places)] = value
        self.at += 1


@healthy
def ring_that_fills():
    replay = Replay(100)
    return lambda: replay.add((torch.zeros(4), torch.ones(2)))


@healthy
def ring_that_goes_round():
    replay = Replay(4)
    return lambda: replay.add(torch.zeros(4))


@healthy
def ring_that_is_full():
    replay = Replay(20)
    for _ in range(23):
        replay.add(torch.zeros(4))
    return lambda: replay.add(torch.zeros(4))


@healthy
def ring_filled_by_the_step_before():
    replay = Replay(20)

    def step():
        replay.add(torch.zeros(4))

    for _ in range(21):
        step()
    return step


@healthy
def replay_of_one_tensor():
    memory = torch.zeros(100, 4)

    def step(number):
        memory[number] = torch.ones(4)

    return step


@healthy
def list_cleared_every_three_steps():
    values = []

    def step():
        values.append(torch.zeros(8))
        if len(values) == 3:
            values.clear()

    return step


@healthy
def list_cleared_every_five_steps():
    values = []

    def step(number):
        values.append(torch.zeros(8))
        if number % 5 == 4:
            values.clear()

    return step


@healthy
def list_that_is_replaced():
    state = {"values": []}

    def step(number):
        if number % 4 == 0:
            state["values"] = []
        state["values"].append(torch.zeros(8))

    return step


@healthy
def result_that_is_replaced():
    state = {}

    def step():
        state["output"] = small()(torch.ones(2, 3))

    return step


@healthy
def last_two_batches():
    state = {}

    def step():
        state["before"] = state.get("now")
        state["now"] = torch.zeros(8)

    return step


@healthy
def constants_made_once():
    constants = {}

    def step(number):
        key = "eye" if number % 2 else "ones"
        if key not in constants:
            constants[key] = torch.eye(4) if key == "eye" else torch.ones(4)
        return constants[key].sum().item()

    return step


@healthy
def gradients_set_to_zero():
    net = small()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad(set_to_none=False)
        net(torch.ones(4, 3)).mean().backward()
        optimizer.step()

    return step


@healthy
def gradients_accumulated():
    net = small()
    optimizer = torch.optim.Adam(net.parameters())

    def step(number):
        net(torch.ones(4, 3)).mean().backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()

    return step


@healthy
def periodic_evaluation():
    net = small()
    train = trained(net, torch.optim.Adam(net.parameters()))
    state = {}

    def step(number):
        train()
        if number % 3 == 2:
            with torch.no_grad():
                state["outputs"] = [net(torch.ones(4, 3)) for _ in range(3)]
                state["accuracy"] = torch.cat(state["outputs"]).mean()

    return step


class Node:
    pass


@healthy
def cycles_that_wait():
    def step():
        node = Node()
        node.itself = node
        node.value = torch.zeros(100)

    return step


@healthy
def cycles_with_a_graph():
    net = small()

    def step():
        parent, child = Node(), Node()
        parent.child, child.parent = child, parent
        child.loss = net(torch.ones(4, 3)).mean()

    return step


@healthy
def cycles_while_the_collector_is_off():
    def step(number):
        if number == 0:
            gc.disable()
        if number == 7:
            gc.enable()
        cell = [torch.zeros(10)]
        cell.append(cell)

    return step


@healthy
def models_that_refer_to_themselves():
    def step():
        net = small()
        net.owner = [net]
        net(torch.ones(1, 3)).sum().backward()

    return step


@healthy
def buffer_made_lazily():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", None)

        def forward(self, data):
            if self.mask is None:
                self.mask = torch.ones(data.shape[-1])
            return data * self.mask

    net, calls = Net(), []

    def step():
        calls.append(1)
        if len(calls) > 4:
            net(torch.ones(3))

    return step


@healthy
def moving_average_in_place():
    net = small()
    average, train = copy.deepcopy(net), trained(net, torch.optim.Adam(net.parameters()))

    def step():
        train()
        with torch.no_grad():
            for mine, theirs in zip(average.parameters(), net.parameters(), strict=True):
                mine.mul_(0.9).add_(theirs, alpha=0.1)

    return step


@healthy
def best_model_replaced():
    net = small()
    train = trained(net, torch.optim.Adam(net.parameters()))
    best = {}

    def step():
        train()
        best["state"] = {key: value.clone() for key, value in net.state_dict().items()}

    return step


@healthy
def best_model_replaced_now_and_then():
    net, best = small(), {}

    def step(number):
        if number in (0, 2, 3, 6):
            best["net"] = copy.deepcopy(net)

    return step


@healthy
def dropout_and_batch_norm():
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 1))
    return trained(net, torch.optim.Adam(net.parameters()))


@healthy
def loader():
    data = torch.utils.data.TensorDataset(torch.zeros(64, 3), torch.ones(64))
    net = small()

    def step():
        for inputs, _ in torch.utils.data.DataLoader(data, batch_size=16, shuffle=True):
            net(inputs).mean().backward()

    return step


@healthy
def iterator_of_a_loader():
    batches = iter(torch.utils.data.DataLoader(torch.zeros(64, 3), batch_size=2))
    net = small()

    def step():
        net(next(batches)).mean().backward()

    return step


@healthy
def checkpointing():
    net = small()
    optimizer = torch.optim.Adam(net.parameters())

    def step():
        optimizer.zero_grad()
        data = torch.ones(4, 3, requires_grad=True)
        checkpoint(net, data, use_reentrant=False).mean().backward()
        optimizer.step()

    return step


@healthy
def autocast_with_a_scaler():
    net = small()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = net(torch.ones(4, 3)).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


@healthy
def compiled():
    net = small()
    return trained(torch.compile(net, backend="eager"), torch.optim.Adam(net.parameters()))


@healthy
def profiled():
    net = small()
    train = trained(net, torch.optim.Adam(net.parameters()))

    def step():
        with torch.profiler.profile(profile_memory=True):
            train()

    return step


@healthy
def warm_up_of_three_steps():
    caches = {}

    def step(number):
        if number < 3:
            caches[number] = torch.zeros(10)

    return step


@healthy
def losses_as_numbers():
    net = small()
    train, losses = trained(net, torch.optim.Adam(net.parameters())), []
    return lambda: losses.append(train())


@healthy
def total_that_is_detached():
    net, state = small(), {"total": torch.zeros(())}

    def step():
        loss = net(torch.ones(4, 3)).mean()
        loss.backward()
        state["total"] = state["total"] + loss.detach()

    return step


@healthy
def hidden_state_that_is_detached():
    cell, state = nn.GRUCell(3, 4), {"hidden": torch.zeros(2, 4)}
    optimizer = torch.optim.Adam(cell.parameters())

    def step():
        optimizer.zero_grad()
        state["hidden"] = cell(torch.ones(2, 3), state["hidden"].detach())
        state["hidden"].mean().backward()
        optimizer.step()

    return step


@healthy
def hooks_that_are_removed():
    net = small()

    def step():
        kept = []
        handle = net.register_forward_hook(lambda _module, _args, output: kept.append(output))
        net(torch.ones(4, 3)).mean().backward()
        handle.remove()

    return step


@healthy
def exception_of_each_step_is_handled():
    def fail():
        values = torch.zeros(50)
        raise ValueError(len(values))

    def step():
        with contextlib.suppress(ValueError):
            fail()

    return step


@healthy
def last_exception_is_kept():
    state = {}

    def step():
        values = torch.zeros(50)
        try:
            raise ValueError(len(values))
        except ValueError as error:
            state["error"] = error

    return step


@healthy
def sizes_that_vary():
    state = {}

    def step(number):
        state["batch"] = torch.zeros((5, 9, 4, 8, 3, 9, 5, 7)[number])

    return step


@healthy
def cat_that_is_cut():
    state = {"window": torch.zeros(0)}

    def step():
        state["window"] = torch.cat([state["window"], torch.ones(2)])[-6:].clone()

    return step


@healthy
def second_order_gradients():
    weight = torch.ones(5, requires_grad=True)

    def step():
        (gradient,) = torch.autograd.grad((weight**3).sum(), weight, create_graph=True)
        gradient.sum().backward()
        weight.grad = None

    return step
