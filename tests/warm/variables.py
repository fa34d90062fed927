"""Variables of the environment that a fork is too late for."""

from collections.abc import Mapping

AT_THE_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC", "OMP", "GOMP", "KMP", "MKL", "OPENBLAS")
AT_THE_START += ("KERAS_", "TF_USE_LEGACY_KERAS", "XLA_")
"""Beginnings of the names of variables that an interpreter or a library reads as it starts."""
TOLD = ("PYTHONPATH", "PYTHONIOENCODING", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
"""Those among them that a fork can follow."""


def read_at_the_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Return those that a process has to be started with."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(AT_THE_START) and name not in TOLD
    }
