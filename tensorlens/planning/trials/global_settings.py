"""Global settings of frameworks: read in the asking process and set in its trials' processes.

Only imported frameworks have settings, most of them read and set by a framework's public functions.
Values are plain, so that they can be pickled without the framework.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from tensorlens.errors import TensorlensError
from tensorlens.guards import one_line

GlobalSettings = Mapping[str, Any]
"""Name, such as ``keras.config.dtype_policy``, to a plain value."""

SEED = "torch.initial_seed"
_DEFAULT_SEED = 67280421310721
"""Seed of torch's generators before a program sets one (``c10/core/GeneratorImpl.h``)."""


class SettingRefused(TensorlensError):
    """A setting of the program cannot be applied in another process."""


class _Setting(NamedTuple):
    """One setting of a framework."""

    name: str
    """Name of the function that returns it, or of its attribute, with the framework in front."""
    read: Callable[[Any], Any]
    """Returns its plain value, given the framework."""
    write: Callable[[Any, Any], Any]
    """Sets it, given the framework and the value."""
    default: Any
    """Value in a fresh process; the framework is imported to set another one. ``...``: it is set
    only if the framework is imported anyway."""


def _pair(getter: str, setter: str, default: Any) -> _Setting:
    _, _, path = getter.partition(".")
    setter_path = f"{path.rpartition('.')[0]}.{setter}".lstrip(".")
    return _Setting(
        getter,
        lambda framework: attrgetter(path)(framework)(),
        lambda framework, value: attrgetter(setter_path)(framework)(value),
        default,
    )


def _threads(kind: str) -> _Setting:
    name = f"{kind}_op_parallelism_threads"
    setting = _pair(f"tensorflow.config.threading.get_{name}", f"set_{name}", 0)
    # 0 leaves it to TensorFlow, which reports its own number once it has started
    return setting._replace(write=lambda tf, value: setting.write(tf, value) if value else None)


def _flag(name: str) -> _Setting:
    """Return the setting of an attribute of ``torch.backends.cudnn``."""
    return _Setting(
        f"torch.backends.cudnn.{name}",
        lambda torch: getattr(torch.backends.cudnn, name),
        lambda torch, value: setattr(torch.backends.cudnn, name, value),
        ...,
    )


def _default_device(torch: Any) -> str:
    """Return the default device; torch before 2.10 fails if a program has reset it."""
    try:
        return str(torch.get_default_device())
    except AttributeError:
        return "cpu"


def _keras_policy(keras: Any) -> str:
    """Return the name of the policy without asking Keras, which would set one."""
    state = sys.modules.get("keras.src.backend.common.global_state")
    found = None if state is None else state.get_global_attribute("dtype_policy")
    return str(keras.config.floatx() if found is None else found.name)


_SETTINGS = (
    _Setting(
        "torch.get_default_dtype",
        lambda torch: str(torch.get_default_dtype()).removeprefix("torch."),
        lambda torch, value: torch.set_default_dtype(getattr(torch, value)),
        "float32",
    ),
    _Setting(
        "torch.get_default_device",
        _default_device,
        lambda torch, value: torch.set_default_device(value),
        "cpu",
    ),
    _pair("torch.is_grad_enabled", "set_grad_enabled", True),
    _pair("torch.get_float32_matmul_precision", "set_float32_matmul_precision", "highest"),
    _pair("torch.are_deterministic_algorithms_enabled", "use_deterministic_algorithms", False),
    _pair("torch.get_num_threads", "set_num_threads", ...),
    _Setting(
        SEED,
        lambda torch: torch.initial_seed(),
        lambda torch, value: torch.manual_seed(value) if value != _DEFAULT_SEED else None,
        _DEFAULT_SEED,
    ),
    _flag("benchmark"),
    _flag("deterministic"),
    _pair("tensorflow.config.functions_run_eagerly", "run_functions_eagerly", False),
    _threads("intra"),
    _threads("inter"),
    _pair("keras.config.floatx", "set_floatx", "float32"),
    _pair("keras.config.image_data_format", "set_image_data_format", ...),
    _Setting(
        "keras.config.dtype_policy",
        _keras_policy,
        lambda keras, value: keras.config.set_dtype_policy(value),
        "float32",
    ),
)


def current_settings() -> GlobalSettings:
    """Return the settings of this process, of the frameworks that it has imported."""
    found: dict[str, Any] = {}
    for each in _SETTINGS:
        framework = sys.modules.get(each.name.partition(".")[0])
        if framework is not None:
            # a release without it, or a framework that is still being imported, has none
            with contextlib.suppress(Exception):
                found[each.name] = each.read(framework)
    return found


def apply(wanted: GlobalSettings) -> GlobalSettings:
    """Apply another process's settings and return the former values of those that differ."""
    before: dict[str, Any] = {}
    for each in _SETTINGS:
        name, value = each.name.partition(".")[0], wanted.get(each.name)
        is_default = each.default is ... or value == each.default
        if each.name not in wanted or (is_default and name not in sys.modules):
            continue
        try:
            framework = importlib.import_module(name)
            here = each.read(framework)
            if here != value:
                before[each.name] = here
                each.write(framework, value)
        except Exception as error:
            raise SettingRefused(
                f"{each.name} is {value!r} in your process, and cannot be set in another one: "
                f"{one_line(error, 200)}"
            ) from error
    return before
