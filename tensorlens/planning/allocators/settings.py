"""Settings of torch's caching allocator, read from ``PYTORCH_CUDA_ALLOC_CONF``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.records.torch_files.sizes import Rules

VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Environment variables that hold the settings; the first that is set counts."""

_OPTION = r"([^,:\[\]]+):(\[[^\]]*\]|[^,:\[\]]+)(?:,|$)"
_READERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "expandable_segments": ("expandable_segments", {"True": True, "False": False}.__getitem__),
    "max_split_size_mb": ("max_split_size", lambda value: int(value) << 20),
}
"""Option to the field of :class:`Rules` that it sets, and what reads its value."""


def settings_text(environment: Mapping[str, str]) -> str:
    """Return the settings in an environment such as ``os.environ``, as they are written."""
    return next((environment[name] for name in VARIABLES if name in environment), "")


def parse_settings(text: str) -> tuple[Rules, tuple[str, ...]]:
    """Return the rules that ``max_split_size_mb:128`` sets, and the options that are not simulated.

    Raises:
        UsageError: the text is no list of options, a value is malformed, or the text asks for an
            allocator other than torch's own.
    """
    compact = "".join(text.split())
    if not re.fullmatch(f"(?:{_OPTION})*", compact):
        raise UsageError(f"PYTORCH_CUDA_ALLOC_CONF: {text!r} is no list of NAME:VALUE with commas")
    fields, unsimulated = {}, []
    for name, value in re.findall(_OPTION, compact):
        if name in _READERS:
            field, read = _READERS[name]
            try:
                fields[field] = read(value)
            except (KeyError, ValueError):
                raise UsageError(
                    f"PYTORCH_CUDA_ALLOC_CONF: {name} has no value {value!r}"
                ) from None
        elif name != "backend":
            unsimulated.append(name)
        elif value != "native":
            raise UsageError(f"backend:{value} cannot be simulated: only torch's own allocator can")
    return Rules(**fields), tuple(unsimulated)
