"""Small programs that leave something behind in every step, with the truth about each."""

import collections
import concurrent.futures
import copy
import ctypes
import dataclasses
import functools
import inspect
import logging
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import nn


@dataclasses.dataclass(frozen=True)
class Truth:
    """What is known of one leak: its line is marked ``# LEAK``."""

    holder: str
    """What must be in the path that holds it."""
    tensors: float
    nbytes: float


@dataclasses.dataclass(frozen=True)
class Program:
    name: str
    make: Callable[[], Callable]
    """Returns the function that does one step."""
    truths: tuple[Truth, ...]

    def lines(self) -> list[int]:
        """Return the numbers of the marked lines, in order."""
        source, first = inspect.getsourcelines(self.make)
        return [first + at for at, line in enumerate(source) if line.rstrip().endswith("# LEAK")]


LEAKS: dict[str, Program] = {}


def leak(holder: str, tensors: float, nbytes: float, *more: tuple[str, float, float]):
    """Add a program; ``more`` are its other leaks, in the order of their lines."""
    truths = tuple(Truth(*each) for each in ((holder, tensors, nbytes), *more))

    def add(make):
        LEAKS[make.__name__] = Program(make.__name__, make, truths)
        return make

    return add


HISTORY: list = []
BY_STEP: dict = {}
NESTED: list = [[]]


@leak("HISTORY (global) -> list[", 1, 64)
def module_global():
    def step():
        HISTORY.append(torch.zeros(16))  # LEAK

    return step


@leak("history (closure) -> list[", 1, 64)
def list_that_began_with_two_places():
    history = [None, None]

    def step():
        history.append(torch.zeros(16))  # LEAK

    return step


@leak("BY_STEP (global) -> dict[", 1, 40)
def dict_keyed_by_step():
    def step(number):
        BY_STEP[len(BY_STEP), number] = torch.ones(10)  # LEAK

    return step


@leak("NESTED (global) -> list[0] -> list[", 2, 64)
def list_in_list():
    def step():
        for _ in range(2):
            NESTED[0].append(torch.ones(8))  # LEAK

    return step


class Trainer:
    seen: list = []  # noqa: RUF012

    def __init__(self):
        self.history = []
        self.by_name = {"loss": [], "accuracy": []}
        self.callbacks = []
        self.total = torch.zeros(())

    def record(self, value):
        self.history.append(value)


@leak("Trainer.history (attribute) -> list[", 1, 400)
def instance_attribute():
    trainer = Trainer()

    def step():
        trainer.history.append(torch.randn(100))  # LEAK

    return step


@leak("Trainer.seen (class attribute) -> list[", 1, 12)
def class_attribute():
    def step():
        Trainer.seen.append(torch.randn(3))  # LEAK

    return step


@leak("Trainer.by_name (attribute) -> dict['loss'] -> list[", 1, 4)
def dict_of_lists():
    trainer = Trainer()

    def step():
        trainer.by_name["loss"].append(torch.ones(6).sum())  # LEAK

    return step


@leak("Trainer.history (attribute) -> list[", 1, 20)
def bound_method():
    keep = Trainer().record

    def step():
        keep(torch.ones(5))  # LEAK

    return step


@leak("losses (closure) -> list[", 1, 8)
def closure_cell():
    losses = []

    def step():
        losses.append(torch.zeros(2))  # LEAK

    return step


def remember(value, kept=[]):  # noqa: B006
    kept.append(value)


@leak("remember(kept=...) (default) -> list[", 1, 28)
def default_argument():
    def step():
        remember(torch.zeros(7))  # LEAK

    return step


def keyword_only(value, *, memo={}):  # noqa: B006
    memo[len(memo)] = value


@leak("keyword_only(memo=...) (default) -> dict[", 1, 36)
def keyword_default():
    def step():
        keyword_only(torch.zeros(9))  # LEAK

    return step


def counted(value):
    counted.values.append(value)


counted.values = []


@leak("counted.values (function attribute) -> list[", 1, 44)
def function_attribute():
    def step():
        counted(torch.zeros(11))  # LEAK

    return step


def collector():
    collected = []
    while True:
        collected.append((yield))


@leak("collector(): collected (generator) -> list[", 1, 16)
def suspended_generator():
    sink = collector()
    next(sink)

    def step():
        sink.send(torch.zeros(4))  # LEAK

    return step


@leak("batches(): batch (generator)", 1, 48)
def generators_never_ended():
    running = []

    def batches():
        batch = torch.zeros(12)  # LEAK
        yield batch
        yield batch

    def step():
        each = batches()
        next(each)
        running.append(each)

    return step


@leak("waiting(): value (coroutine)", 1, 52)
def suspended_coroutines():
    running = []

    class Never:
        def __await__(self):
            yield

    async def waiting():
        value = torch.zeros(13)  # LEAK
        await Never()
        return value

    def step():
        each = waiting()
        each.send(None)
        running.append(each)

    return step


@leak("work(): kept (local) -> list[", 1, 56)
def thread():
    asked, done = queue.SimpleQueue(), queue.SimpleQueue()

    def work():
        kept = []
        while asked.get():
            kept.append(torch.zeros(14))  # LEAK
            done.put(None)

    threading.Thread(target=work, daemon=True).start()

    def step():
        asked.put(True)
        done.get()

    return step


@leak("errors", 1, 60)
def exceptions_with_tracebacks():
    errors = []

    def fail():
        values = torch.zeros(15)  # LEAK
        raise ValueError(len(values))

    def step():
        try:
            fail()
        except ValueError as error:
            errors.append(error)

    return step


@leak("HeldError", 1, 24)
def exceptions_with_tensors():
    class HeldError(Exception):
        pass

    errors = []

    def step():
        try:
            raise HeldError(torch.zeros(6))  # LEAK
        except HeldError as error:
            errors.append(error.with_traceback(None))

    return step


@leak("mask (lru_cache, maxsize=None)", 1, 128)
def unbounded_lru_cache():
    @functools.lru_cache(maxsize=None)  # noqa: UP033
    def mask(length):
        return torch.ones(32)  # LEAK

    def step(number):
        mask(number)

    return step


@leak("Queue[", 1, 32)
def unbounded_queue():
    waiting = queue.Queue()

    def step():
        waiting.put(torch.ones(8))  # LEAK

    return step


@leak("SimpleQueue", 1, 32)
def simple_queue():
    waiting = queue.SimpleQueue()

    def step():
        waiting.put(torch.ones(8))  # LEAK

    return step


@leak("waiting (closure)", 1, 36)
def unbounded_deque():
    waiting = collections.deque()

    def step():
        waiting.append({"batch": torch.ones(9)})  # LEAK

    return step


@leak("Future", 1, 68)
def futures():
    results = []
    pool = concurrent.futures.ThreadPoolExecutor(1)

    def work():
        return torch.zeros(17)  # LEAK

    def step():
        results.append(pool.submit(work))
        results[-1].result()

    return step


@leak("dict['values'] -> list[", 1, 72)
def thread_local():
    local = threading.local()
    local.values = []

    def step():
        local.values.append(torch.zeros(18))  # LEAK

    return step


@leak("forward hook", 1, 84)
def hooks_of_a_module():
    net = nn.Linear(2, 2)

    def step():
        value = torch.zeros(21)  # LEAK
        net.register_forward_hook(lambda *_: value)

    return step


@leak("saved (closure) -> list[", 1, 48)
def hook_that_keeps_outputs():
    net, saved = nn.Linear(3, 4), []
    net.register_forward_hook(lambda _module, _args, output: saved.append(output))

    def step():
        with torch.no_grad():
            net(torch.ones(3, 3))  # LEAK

    return step


@leak("hook", 1, 88)
def hooks_of_a_tensor():
    weight = torch.zeros(2, requires_grad=True)

    def step():
        value = torch.zeros(22)  # LEAK
        weight.register_hook(lambda _: value.sum())

    return step


@leak("state (optimizer state)", 1, 40, ("state (optimizer state)", 1, 20))
def optimizer_state_of_replaced_parameters():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.9)

    def step():
        value = torch.zeros(5, requires_grad=True)  # LEAK
        value.grad = torch.ones(5)
        optimizer.param_groups[0]["params"] = [value]
        optimizer.step()  # LEAK

    return step


@leak("SGD.param_groups (attribute) -> list[", 1, 92)
def param_groups_appended():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)

    def step():
        value = torch.zeros(23, requires_grad=True)  # LEAK
        optimizer.add_param_group({"params": [value]})

    return step


@leak("optimizers (closure)", 2, 4 * (9 + 3))
def optimizers_kept():
    net, optimizers = nn.Linear(3, 3), []

    def step():
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        net(torch.ones(1, 3)).sum().backward()
        optimizer.step()  # LEAK
        optimizers.append(optimizer)

    return step


@leak("_SingleProcessDataLoaderIter", 1, 96)
def loader_iterators():
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            scratch = torch.zeros(24)  # LEAK
            while True:
                yield scratch[0].item()

    loader, iterators = torch.utils.data.DataLoader(Endless()), []

    def step():
        iterators.append(iter(loader))
        next(iterators[-1])

    return step


@leak("arrays (closure) -> list[", 1, 96)
def numpy_views():
    arrays = []

    def step():
        arrays.append(torch.zeros(24).numpy())  # LEAK

    return step


@leak("", 1, 100)
def dlpack():
    capsules = []

    def step():
        capsules.append(torch.utils.dlpack.to_dlpack(torch.zeros(25)))  # LEAK

    return step


@leak("total (closure)", 2, 8 * 4 * 10 + 8 * 4 * 20)
def running_loss():
    net = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 1))
    total = torch.zeros(())

    def step():
        nonlocal total
        loss = net(torch.ones(8, 10)).mean()
        total = total + loss  # LEAK

    return step


@leak("Trainer.total (attribute)", 1, 4 * 6)
def running_loss_in_place():
    trainer = Trainer()
    weight = torch.ones(6, requires_grad=True)

    def step():
        loss = (weight * torch.ones(6)).sum()  # LEAK
        trainer.total += loss

    return step


@leak("losses (closure) -> list[", 1, 4 + 4 * 6)
def losses_with_their_graph():
    losses, weight = [], torch.ones(6, requires_grad=True)

    def step():
        data = torch.ones(6)
        loss = (weight * data).sum()  # LEAK
        losses.append(loss)

    return step


@leak("losses (closure) -> list[", 1, 4)
def losses_after_backward():
    net, losses = nn.Linear(4, 1), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        loss = net(torch.ones(2, 4)).mean()  # LEAK
        loss.backward()
        optimizer.step()
        losses.append(loss)

    return step


@leak("losses (closure) -> list[", 1, 4 + 4 * 8)
def losses_with_retain_graph():
    net, losses = nn.Linear(4, 1), []

    def step():
        net.zero_grad()
        data = torch.ones(2, 4)
        loss = net(data).mean()  # LEAK
        loss.backward(retain_graph=True)
        losses.append(loss)

    return step


@leak("outputs (closure) -> list[", 1, 4 * 16 * 2 + 4 * 16 * 3)
def evaluation_without_no_grad():
    net, outputs = nn.Linear(3, 2), []

    def step():
        net.eval()
        outputs.append(net(torch.ones(16, 3)))  # LEAK

    return step


@leak("hidden (closure)", 1, 4 * 7)
def hidden_state_never_detached():
    weight = torch.ones(7, requires_grad=True)
    hidden = torch.ones(7)

    def step():
        nonlocal hidden
        hidden = (hidden * weight).tanh()  # LEAK

    return step


@leak("outputs (closure)", 1, 4 + 4 * 9)
def context_of_a_function():
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            ctx.factor = torch.full((9,), 2.0)
            return value * 2  # LEAK

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    weight, outputs = torch.ones((), requires_grad=True), []

    def step():
        outputs.append(Scale.apply(weight))

    return step


@leak("nodes (closure)", 1, 4 * 6)
def nodes_kept():
    nodes, weight = [], torch.ones(6, requires_grad=True)

    def step():
        loss = (weight * torch.ones(6)).sum()  # LEAK
        nodes.append(loss.grad_fn)

    return step


@leak("buffer (closure)", 0, 20)
def growing_cat():
    buffer = torch.zeros(0)

    def step():
        nonlocal buffer
        buffer = torch.cat([buffer, torch.ones(5)])  # LEAK

    return step


@leak("Attention.keys (attribute)", 0, 2 * 8 * 4, ("Attention.values (attribute)", 0, 2 * 8 * 4))
def growing_cache_of_keys():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.keys, self.values = torch.zeros(2, 0, 8), torch.zeros(2, 0, 8)

        def forward(self, data):
            self.keys = torch.cat([self.keys, data], 1)  # LEAK
            self.values = torch.cat([self.values, data], 1)  # LEAK
            return self.keys.sum() + self.values.sum()

    net = Attention()

    def step():
        with torch.no_grad():
            net(torch.ones(2, 1, 8))

    return step


@dataclasses.dataclass
class Sample:
    value: object


@leak("samples (closure) -> list[", 1, 104)
def dataclasses_kept():
    samples = []

    def step():
        samples.append(Sample(torch.zeros(26)))  # LEAK

    return step


Pair = collections.namedtuple("Pair", "left right")


@leak("pairs (closure) -> list[", 2, 8 * 13)
def named_tuples():
    pairs = []

    def step():
        pairs.append(Pair(torch.zeros(13), torch.zeros(13)))  # LEAK

    return step


class Slotted:
    __slots__ = ("__weakref__", "value")


@leak("slotted (closure)", 1, 108)
def slots():
    slotted = []

    def step():
        each = Slotted()
        each.value = torch.zeros(27)  # LEAK
        slotted.append(each)

    return step


class Linked:
    def __init__(self, value, before):
        self.value, self.before = value, before


@leak("last (closure) -> Linked", 1, 28)
def linked_list():
    last = None

    def step():
        nonlocal last
        last = Linked(torch.zeros(7), last)  # LEAK

    return step


@leak("copies (closure)", 2, 4 * (12 + 4))
def deep_copies():
    net, copies = nn.Linear(3, 4), []

    def step():
        copies.append(copy.deepcopy(net))  # LEAK

    return step


@leak("checkpoints (closure)", 4, 4 * (12 + 4 + 8 + 2))
def checkpoints_kept():
    net, checkpoints = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), []

    def step():
        checkpoints.append({key: value.clone() for key, value in net.state_dict().items()})  # LEAK

    return step


@leak("Metric.values (attribute) -> list[", 1, 4 + 4 * 6)
def metric_with_grad():
    class Metric:
        def __init__(self):
            self.values = []

        def update(self, value):
            self.values.append(value)

    metric, weight = Metric(), torch.ones(6, requires_grad=True)

    def step():
        metric.update((weight * torch.ones(6)).mean())  # LEAK

    return step


@leak("first (closure) -> list[", 1, 4 * 1000)
def small_view_of_large_storage():
    first = []

    def step():
        first.append(torch.zeros(1000)[:1])  # LEAK

    return step


@leak("net (closure)", 1, 116)
def buffers_renamed():
    net = nn.Module()

    def step(number):
        net.register_buffer(f"cache_{number}", torch.zeros(29))  # LEAK

    return step


@leak("Holder.", 1, 32)
def attributes_renamed():
    class Holder:
        pass

    holder = Holder()

    def step(number):
        setattr(holder, "abcdefghijklmnopq"[number], torch.zeros(8))  # LEAK

    return step


@leak("Records.records (attribute)", 1, 120)
def logging_handler():
    class Records(logging.Handler):
        def __init__(self):
            super().__init__()
            self.records = []

        def emit(self, record):
            self.records.append(record)

    logger = logging.Logger("quiet")
    logger.addHandler(Records())

    def step():
        logger.warning("made %s", torch.zeros(30))  # LEAK

    return step


@leak("Trainer.callbacks (attribute) -> list[", 1, 124)
def callbacks_with_partial():
    trainer = Trainer()

    def step():
        trainer.callbacks.append(functools.partial(print, torch.zeros(31)))  # LEAK

    return step


@leak("Trainer.callbacks (attribute) -> list[", 1, 12)
def callbacks_with_closures():
    trainer = Trainer()

    def step():
        value = torch.zeros(3)  # LEAK
        trainer.callbacks.append(lambda: value)

    return step


@leak("Trainer.history (attribute)", 1, 40, ("outputs (closure)", 1, 4 * 21))
def two_leaks():
    trainer, outputs = Trainer(), []

    def step():
        trainer.history.append(torch.zeros(10))  # LEAK
        outputs.append(torch.ones(21))  # LEAK

    return step


@leak("HISTORY (global) -> list[", 0.5, 32)
def one_step_in_two():
    def step(number):
        if number % 2:
            HISTORY.append(torch.zeros(16))  # LEAK

    return step


@leak("HISTORY (global) -> list[", 0.5, 32)
def the_other_step_in_two():
    def step(number):
        if number % 2 == 0:
            HISTORY.append(torch.zeros(16))  # LEAK

    return step


@leak("texts (closure) -> list[", 1, 4 * 5)
def variable_sizes():
    texts = []

    def step(number):
        # steps 2 to 6 make 3, 7, 3, 7 and 5 items
        texts.append(torch.zeros((9, 9, 3, 7, 3, 7, 5, 9)[number]))  # LEAK

    return step


@leak("kept (closure)", 1, 4 * 6)
def a_state_and_a_leak_of_one_line():
    kept, state = [], {}

    def make():
        return torch.zeros(6)  # LEAK

    def step():
        if "state" not in state:
            state["state"] = make()
        state["last"] = make()
        kept.append(make())

    return step


@leak("Slide.window (attribute)", 1, 4 * 4)
def list_inside_a_bounded_deque():
    class Slide:
        def __init__(self):
            self.window = []

    recent = collections.deque([Slide()], maxlen=3)

    def step():
        recent[0].window.append(torch.zeros(4))  # LEAK

    return step


@leak("kept (closure)", 1, 4 * 4)
def list_with_nothing_in_between():
    kept = []

    def step():
        kept.append(torch.zeros(4))  # LEAK
        kept.append(None)

    return step


@leak("kept (closure)", 1, 4 * 4)
def weak_dictionary_with_strong_values():
    kept, owners = weakref.WeakKeyDictionary(), []

    def step():
        owners.append(Linked(0, None))
        kept[owners[-1]] = torch.zeros(4)  # LEAK

    return step


@leak("SimpleNamespace.log", 1, 4 * 4)
def simple_namespace():
    here = SimpleNamespace(log=[])

    def step():
        here.log.append(torch.zeros(4))  # LEAK

    return step


@leak("seen (closure) -> set{", 1, 4 * 4)
def set_of_tensors():
    seen = set()

    def step():
        seen.add(torch.zeros(4))  # LEAK

    return step


@leak("sys.", 1, 4 * 4)
def attribute_of_a_foreign_module():
    sys.tensors = []

    def step():
        sys.tensors.append(torch.zeros(4))  # LEAK

    return step


@leak("outside of Python", 1, 4 * 4)
def references_that_only_c_has():
    def step():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(torch.zeros(4)))  # LEAK

    return step


@leak("pairs (closure)", 1, 4 * 8, ("pairs (closure)", 1, 4 + 4 * 8))
def output_and_loss_share_a_graph():
    pairs, weight = [], torch.ones(8, requires_grad=True)

    def step():
        output = weight.exp()  # LEAK
        loss = (output * torch.ones(8)).sum()  # LEAK
        pairs.append((output, loss))

    return step
