"""The native reader of tensors, compiled against the headers of the installed TensorFlow."""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from tensorlens.frameworks.native.building import NativeUnavailable, Part

_LABEL = "the native reader of TensorFlow's tensors"
_LIBRARIES = ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2")
_BINDINGS = "lib_pywrap_tensorflow_common.so"


def _folder() -> Path:
    return Path(tf.__file__).resolve().parent


def _arguments() -> Sequence[str]:
    folder = _folder()
    include = folder / "include"
    bindings = folder / "python"
    if not (include / "tensorflow" / "core" / "framework" / "tensor.h").is_file():
        raise NativeUnavailable(
            f"{_LABEL} was not built: this TensorFlow has no C++ headers ({include}): "
            "install TensorFlow from its wheels"
        )
    if (
        not all((folder / name).is_file() for name in _LIBRARIES)
        or not (bindings / _BINDINGS).is_file()
    ):
        raise NativeUnavailable(f"{_LABEL} was not built: TensorFlow's libraries are elsewhere")
    return [
        *(flag for flag in tf.sysconfig.get_compile_flags() if flag.startswith(("-D", "--std"))),
        *("-isystem", str(include), "-isystem", sysconfig.get_path("include")),
        *(f"-L{folder}", f"-L{bindings}", *(f"-l:{name}" for name in (*_LIBRARIES, _BINDINGS))),
        *(f"-Wl,-rpath,{path}" for path in (folder, bindings)),
    ]


def _depends_on() -> tuple[Any, ...]:
    stats = [(_folder() / name).stat() for name in _LIBRARIES]
    return (tf.__version__, *((stat.st_size, stat.st_mtime_ns) for stat in stats))


READER = Part("reader", _LABEL, Path(__file__).with_name("reader.cpp"), _arguments, _depends_on)
