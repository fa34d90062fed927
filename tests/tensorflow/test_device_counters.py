"""Counters of accelerators, by what TensorFlow says of stand-ins for them."""

import pytest
import tensorflow as tf
from tensorflow.python import pywrap_tfe

from tensorlens.errors import DeviceError
from tensorlens.frameworks import UNKNOWN
from tensorlens.frameworks.tensorflow import Adapter, counters, torch_device_name


class Card:
    """An allocator with a peak that anybody may reset, as TensorFlow's functions give it."""

    def __init__(self):
        self.current = self.peak = 0

    def hand_out(self, nbytes):
        self.current += nbytes
        self.peak = max(self.peak, self.current)

    def info(self, handle, device):
        if device != "GPU:0":
            raise ValueError(f"No matching devices found for '{device}'")
        return {"current": self.current, "peak": self.peak}

    def reset(self, handle, device):
        self.info(handle, device)
        self.peak = self.current


@pytest.fixture
def card(monkeypatch):
    tf.constant(0.0)
    stand_in = Card()
    monkeypatch.setattr(pywrap_tfe, "TFE_GetMemoryInfo", stand_in.info)
    monkeypatch.setattr(pywrap_tfe, "TFE_ResetMemoryStats", stand_in.reset)
    monkeypatch.setattr(counters, "_original_info", None)
    monkeypatch.setattr(counters, "_original_reset", None)
    monkeypatch.setattr(counters, "_highest", {})
    devices = ["/job:localhost/replica:0/task:0/device:CPU:0", "/device:GPU:0"]
    monkeypatch.setattr(counters, "devices", lambda: devices)
    return stand_in


def users_info():
    return tf.config.experimental.get_memory_info("GPU:0")


def test_names_are_torchs():
    assert torch_device_name("/job:localhost/replica:0/task:0/device:GPU:1") == "cuda:1"
    assert torch_device_name("/GPU:0") == "cuda:0"
    assert torch_device_name("/device:TPU:3") == "tpu:3"
    assert torch_device_name("/CPU:0") == torch_device_name("") == "cpu"


def test_a_card_in_use_is_found(card):
    assert list(Adapter().used_devices()) == ["cuda:0"]


def test_allocated_and_peak_since_the_last_read(card):
    read = Adapter().device_counter("cuda:0").reader()
    card.hand_out(1024)
    card.hand_out(4096)
    card.hand_out(-4096)
    assert tuple(read()) == (1024, 5120, UNKNOWN)
    assert tuple(read()) == (1024, 1024, UNKNOWN)


def test_the_users_own_peak_is_kept(card):
    read = Adapter().device_counter("cuda:0").reader()
    card.hand_out(8192)
    card.hand_out(-8192)
    read()
    card.hand_out(256)
    read()
    assert users_info() == {"current": 256, "peak": 8192}
    tf.config.experimental.reset_memory_stats("GPU:0")
    assert users_info() == {"current": 256, "peak": 256}
    card.hand_out(512)
    card.hand_out(-512)
    read()
    assert users_info() == {"current": 256, "peak": 768}


def test_missing_figures_have_a_reason(card):
    counter = Adapter().device_counter("cuda:0")
    assert "TensorFlow does not tell" in counter.missing["reserved"]


def test_a_device_without_statistics_reads_unknown(card):
    read = counters.DeviceCounter("tpu:0").reader()
    assert tuple(read()) == (UNKNOWN, UNKNOWN, UNKNOWN)


def test_wrong_devices_are_errors(card):
    with pytest.raises(DeviceError, match="no device cuda:7 here"):
        Adapter().device_counter("cuda:7")
    with pytest.raises(DeviceError, match="give cpu, cuda:0"):
        Adapter().device_name("quantum:0")
    assert Adapter().device_name("/GPU:0") == "cuda:0"


def test_user_errors_pass_through(card):
    Adapter().device_counter("cuda:0").reader()()
    with pytest.raises(ValueError, match="GPU:5"):
        tf.config.experimental.get_memory_info("GPU:5")
