"""Skips what needs TensorFlow, with the reason, where there is none."""

import importlib.util
import os

import pytest

from tests.aside import set_all_aside_but, set_libraries_aside

HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
if HAS_TENSORFLOW:
    import tensorflow

    # before any module of tests is there: its globals are to be seen
    set_libraries_aside("tensorflow", "keras")


@pytest.fixture(autouse=True, scope="module")
def others_aside(request):
    set_all_aside_but(request.module, (tensorflow.Tensor, tensorflow.Variable))


class WithoutTensorFlow(pytest.Module):
    def collect(self):
        pytest.skip("tensorflow is not installed", allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    if not HAS_TENSORFLOW:
        return WithoutTensorFlow.from_parent(parent, path=module_path)
    return None
