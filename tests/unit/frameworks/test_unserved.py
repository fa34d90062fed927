"""A backend of Keras that cannot be read is named."""

import sys
import types

import pytest

from tensorlens.frameworks import registry


@pytest.mark.parametrize(("backend", "named"), [("jax", True), ("torch", False), ("", False)])
def test_backend_that_cannot_be_read_is_named(backend, named, monkeypatch):
    config = types.ModuleType("keras.src.backend.config")
    vars(config)["_BACKEND"] = backend
    monkeypatch.setitem(sys.modules, config.__name__, config)
    line = f"Keras runs on {backend}, whose memory cannot be read"
    assert (line in registry.why_unusable()) is named
