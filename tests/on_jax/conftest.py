"""Skips what needs JAX, with the reason, where there is none."""

import pytest
from jax_programs import HAS_JAX


class WithoutJax(pytest.Module):
    def collect(self):
        pytest.skip("jax is not installed", allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    return None if HAS_JAX else WithoutJax.from_parent(parent, path=module_path)
