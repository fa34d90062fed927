"""JAX asked without being imported: devices, counters and ledgers of a stand-in for it."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from tensorlens.errors import DeviceError, UsageError
from tensorlens.frameworks.base import Compiler
from tensorlens.frameworks.jax import counters, failures, functions, runtime
from tensorlens.frameworks.jax.census.ledgers import ledgers
from tensorlens.frameworks.jax.steps import JaxSteps
from tensorlens.records.tensors import TensorTable

MIB = 1 << 20


class Device:
    def __init__(self, platform, number, stats=None):
        self.platform, self.id, self.local_hardware_id = platform, number + 8, number
        self.stats = stats

    def memory_stats(self):
        return self.stats


class Stack:
    def __init__(self, *frames):
        self.frames = frames


class Array:
    """Four numbers on one device, made by a line."""

    dtype, shape, size, nbytes = "float32", (4,), 4, 16

    def __init__(self, device, line):
        self.sharding = SimpleNamespace(device_set={device}, memory_kind="device")
        frame = SimpleNamespace(file_name=__file__, line_num=line, function_name="step")
        self.traceback = Stack(frame) if line else None

    def is_deleted(self):
        return False

    def is_ready(self):
        return True

    def unsafe_buffer_pointer(self):
        return id(self)

    def on_device_size_in_bytes(self):
        return 512


class Client:
    def __init__(self, platform, devices):
        self.platform, self.devices, self.arrays = platform, devices, []

    def local_devices(self):
        return self.devices

    def live_arrays(self):
        return self.arrays


@pytest.fixture
def made(monkeypatch):
    """Puts clients into a module that looks like JAX's."""
    for name in runtime._OTHERS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delitem(sys.modules, "keras.src.backend.config", raising=False)
    bridge = ModuleType(runtime._BRIDGE)
    monkeypatch.setitem(sys.modules, runtime._BRIDGE, bridge)
    monkeypatch.setattr(counters, "_devices", {})

    def make(**clients):
        vars(bridge)["_backends"] = clients

    make()
    return make


def one_gpu(**stats):
    device = Device("gpu", 0, stats or None)
    client = Client("gpu", [device])
    return device, {"cpu": Client("cpu", [Device("cpu", 0)]), "cuda": client, "gpu": client}


def test_jax_is_in_use_once_devices_are_made_or_nobody_else_imported_it(made, monkeypatch):
    assert runtime.is_in_use()
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert not runtime.is_in_use()
    config = ModuleType("keras.src.backend.config")
    vars(config)["_BACKEND"] = "torch"
    monkeypatch.setitem(sys.modules, "keras.src.backend.config", config)
    assert not runtime.is_in_use()
    vars(config)["_BACKEND"] = "jax"
    assert runtime.is_in_use()
    vars(config)["_BACKEND"] = "torch"
    made(cpu=Client("cpu", []))
    assert runtime.is_in_use()


def test_without_devices_there_is_nothing(made):
    counter = counters.cpu_counter()
    assert [*counter.missing] == ["peak"]
    assert counter.reader()()[:2] == (0, -1)
    assert counters.has_accelerators()
    assert counters.used_devices() == []
    assert counters.device_name("gpu:1") == "cuda:1"
    with pytest.raises(DeviceError, match="no accelerator cuda:0 here"):
        counters.device_counter("cuda:0")
    made(cpu=Client("cpu", [Device("cpu", 0)]))
    assert counter.reader()()[:2] == (0, -1)
    assert not counters.has_accelerators()


def test_devices_have_torchs_names_by_their_number_in_this_process(made):
    _, clients = one_gpu()
    made(**clients, tpu=Client("tpu", [Device("tpu", 0), Device("tpu", 1)]))
    assert counters.used_devices() == ["cuda:0", "tpu:0", "tpu:1"]
    assert counters.device_name("gpu") == "cuda:0"
    with pytest.raises(DeviceError, match="JAX has cpu, cuda:0, tpu:0, tpu:1"):
        counters.device_counter("cuda:3")
    assert runtime.memory_name(clients["gpu"].devices[0], "pinned_host") == "cpu"
    assert runtime.memory_name(clients["gpu"].devices[0], "device") == "cuda:0"


def test_a_peak_is_told_where_the_only_one_there_is_rose(made):
    device, clients = one_gpu(bytes_in_use=100, peak_bytes_in_use=300, pool_bytes=MIB)
    made(**clients)
    counter = counters.device_counter("cuda:0")
    assert [*counter.missing] == ["peak"]
    read = counter.reader()
    assert read() == (100, -1, MIB)
    device.stats["peak_bytes_in_use"] = 500
    assert read() == (100, 500, MIB)
    assert read() == (100, -1, MIB)
    # what is there now is the highest there was
    device.stats["bytes_in_use"] = 500
    assert read() == (500, 500, MIB)


def test_the_ledger_of_a_device_balances_as_far_as_jax_tells(made):
    _, clients = one_gpu(bytes_in_use=1000, peak_bytes_in_use=3000, pool_bytes=MIB)
    made(**clients)
    ledger = ledgers(TensorTable())["cuda:0"]
    assert (ledger.allocated, ledger.named, ledger.unnamed) == (1000, 0, 1000)
    assert (ledger.reserved, ledger.cached, ledger.driver_used) == (MIB, MIB - 1000, None)
    assert sorted(ledger.missing) == ["driver_total", "driver_used", "other"]


def test_a_device_without_figures_is_unknown_and_not_empty(made):
    _, clients = one_gpu()
    made(**clients)
    counter = counters.device_counter("cuda:0")
    assert sorted(counter.missing) == ["allocated", "peak", "reserved"]
    assert counter.reader()() == (-1, -1, -1)
    ledger = ledgers(TensorTable())["cuda:0"]
    assert (ledger.allocated, ledger.unnamed, ledger.reserved, ledger.cached) == (None,) * 4


def test_another_counter_of_the_host_can_be_asked_for(monkeypatch):
    monkeypatch.setenv("TENSORLENS_COUNTER", "resident")
    assert counters.cpu_counter().source == "resident set"
    monkeypatch.setenv("TENSORLENS_COUNTER", "no such")
    with pytest.raises(UsageError, match="choose one of"):
        counters.cpu_counter()


def test_what_grows_is_told_of_each_device_by_itself(made):
    devices = [Device("gpu", number, {"bytes_in_use": 0}) for number in range(2)]
    client = Client("gpu", devices)
    made(cuda=client)
    steps = JaxSteps()
    steps.begin()
    client.arrays = [Array(devices[number], line) for number, line in ((0, 7), (1, 7), (1, 0))]
    figures = steps.figures()
    told = {
        (steps.device(number), line and line.lineno): sizes
        for number, sizes in figures.lines.items()
        for line in [steps.line(number)]
    }
    assert told == {("cuda:0", 7): (1, 512), ("cuda:1", 7): (1, 512), ("cuda:1", None): (1, 512)}
    left = steps.left(0)
    assert [steps.device(birth) for birth in left.birth] == ["cuda:0", "cuda:1", "cuda:1"]
    assert [birth < 0 for birth in left.birth] == [False, False, True]


def test_what_a_plugin_leaves_unset_is_unknown(made):
    _, clients = one_gpu(bytes_in_use=100, pool_bytes=-1)
    made(**clients)
    assert counters.device_counter("cuda:0").reader()()[2] == -1
    ledger = ledgers(TensorTable())["cuda:0"]
    assert (ledger.reserved, ledger.cached) == (None, None)
    clients["gpu"].devices[0].stats["bytes_in_use"] = -1
    assert counters.memory_stats("cuda:0") is None


def test_the_one_gpu_of_a_mac_has_torchs_name(made):
    device = Device("METAL", 0, {"bytes_in_use": 5})
    made(metal=Client("METAL", [device]))
    assert counters.used_devices() == ["mps"]
    assert counters.device_counter("mps").reader()()[0] == 5
    assert counters.device_name(device) == "mps"


def failing(text, module="jax.errors"):
    kind = type("JaxRuntimeError", (RuntimeError,), {"__module__": module})
    return kind(text)


def test_what_a_failed_allocation_asked_for(made):
    text = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.\nmore"
    found = failures.failed_request(failing(text))
    assert (found.device, found.nbytes) == (None, 8 << 30)
    assert failures.failed_request(failing("RESOURCE_EXHAUSTED: quota")).nbytes is None
    assert failures.failed_request(failing("INTERNAL: 3 bytes")) is None
    assert failures.failed_request(failing(text, module="builtins")) is None
    assert failures.failed_request(SimpleNamespace) is None


def test_every_framework_is_asked_whether_code_runs_to_build_a_graph():
    asked, answers = Compiler(), {"first": False, "second": False}
    assert not asked.is_building()
    asked.builds(first := lambda: answers["first"])
    assert asked.is_building is first
    asked.builds(lambda: answers["second"])
    asked.builds(first)
    assert not asked.is_building()
    for name in answers:
        answers[name] = True
        assert asked.is_building()
        answers[name] = False


def test_a_trace_below_another_is_found_and_those_that_compute_are_not(monkeypatch):
    def trace(kind, parent=None):
        return type(kind, (), {"parent_trace": parent})()

    core = ModuleType(functions._CORE)
    monkeypatch.setitem(sys.modules, functions._CORE, core)
    assert not functions.is_building()
    for chain, builds in (
        (trace("EvalTrace"), False),
        (trace("JVPTrace", trace("EvalTrace")), False),
        (trace("DynamicJaxprTrace"), True),
        (trace("JVPTrace", trace("BatchTrace", trace("DynamicJaxprTrace"))), True),
    ):
        vars(core)["trace_ctx"] = SimpleNamespace(trace=chain)
        assert functions.is_building() is builds
