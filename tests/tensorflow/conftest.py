"""Skips what needs TensorFlow, with the reason, where there is none."""

import importlib.util
import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


class WithoutTensorFlow(pytest.Module):
    def collect(self):
        pytest.skip("tensorflow is not installed", allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    if importlib.util.find_spec("tensorflow") is None:
        return WithoutTensorFlow.from_parent(parent, path=module_path)
    return None
