"""Which framework a program is of, without any."""

import sys
import types

import pytest

from tensorlens.errors import UsageError
from tensorlens.planning.estimate import framework_of, target
from tensorlens.planning.trials import Program


def made(source, name="make_step", **given):
    held = {"__name__": "a_program", **given}
    exec(source, held)
    return held[name]


MODULES = {name: types.ModuleType(name) for name in ("torch", "tensorflow", "keras", "jax")}
HELPERS = types.ModuleType("helpers")
HELPERS.tf = MODULES["tensorflow"]
PLAIN = "def make_step():\n    return lambda: None"


@pytest.mark.parametrize(
    ("source", "given", "framework"),
    [
        (PLAIN, {}, "torch"),
        (PLAIN, {"tf": MODULES["tensorflow"]}, "tensorflow"),
        (PLAIN, {"helpers": HELPERS}, "tensorflow"),
        (PLAIN, {"helpers": HELPERS, "torch": MODULES["torch"]}, "torch"),
        ("def make_step():\n    return tf.zeros", {"tf": MODULES["tensorflow"]}, "tensorflow"),
        ("def make_step():\n    import tensorflow", {}, "tensorflow"),
        (
            "def make_step():\n    return lambda: keras.Model",
            {"keras": MODULES["keras"]},
            "tensorflow",
        ),
        (
            "def make_step():\n    return torch.zeros",
            {"tf": MODULES["tensorflow"], "torch": MODULES["torch"]},
            "torch",
        ),
    ],
)
def test_a_function_is_of_what_it_names(source, given, framework, monkeypatch):
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setenv("KERAS_HOME", "/nowhere")
    monkeypatch.delitem(sys.modules, "keras.src.backend.config", raising=False)
    assert framework_of(made(source, **given), Program("p", parcel=b"")) == framework


def test_keras_on_torch_is_of_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "keras.src.backend.config", raising=False)
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    source = "def make_step():\n    import keras"
    assert framework_of(made(source), Program("p", parcel=b"")) == "torch"


@pytest.mark.parametrize(
    ("content", "framework"),
    [
        ('{"backend": "torch"}', "torch"),
        ("{}", "tensorflow"),
        ("[", "tensorflow"),
        ("[]", "tensorflow"),
    ],
)
def test_backend_that_keras_is_configured_with(content, framework, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "keras.src.backend.config", raising=False)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    (tmp_path / "keras.json").write_text(content)
    source = "def make_step():\n    import keras"
    assert framework_of(made(source), Program("p", parcel=b"")) == framework


@pytest.mark.parametrize("backend", ["jax", None])
def test_jax_backend_is_refused(backend, monkeypatch):
    monkeypatch.delitem(sys.modules, "keras.src.backend.config", raising=False)
    monkeypatch.setenv("KERAS_BACKEND", backend or "tensorflow")
    # beside Keras, TensorFlow may be there for the input alone
    given = {"keras": MODULES["keras"], "tf": MODULES["tensorflow"]} if backend else {}
    with pytest.raises(UsageError, match="computes with jax: tensorlens runs torch and tensorflow"):
        framework_of(made(PLAIN, jax=MODULES["jax"], **given), Program("p", parcel=b""))


def test_jax_beside_another_framework_is_not_what_computes():
    given = {"jax": MODULES["jax"], "torch": MODULES["torch"]}
    assert framework_of(made(PLAIN, **given), Program("p", parcel=b"")) == "torch"


@pytest.mark.parametrize(
    ("source", "framework"),
    [
        ("import tensorflow.keras as k", "tensorflow"),
        ("from tensorflow import keras", "tensorflow"),
        ("import os", "torch"),
        ("no python", "torch"),
    ],
)
def test_a_text_is_of_what_its_file_imports(source, framework, tmp_path, monkeypatch):
    tmp_path.joinpath("a_train_file.py").write_text(f"{source}\ndef make_step(): ...\n")
    monkeypatch.chdir(tmp_path)
    for text in ("a_train_file.py:make_step", "a_train_file:make_step"):
        assert framework_of(text, target.program(text)) == framework
    with pytest.raises(UsageError):
        target.program("no_such_file:make_step")
