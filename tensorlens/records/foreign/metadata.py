"""What tensorlens has torch note beside each event: a line of ``key=value`` parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorlens.records.events import PHASES, Context, Stacks

PREFIX = "tensorlens "
_PARTS = ("phase", "module", "op", "outer", "node")


def parse_metadata(text: str) -> Mapping[str, str]:
    """Return the parts of a line such as ``tensorlens phase=forward module=net.fc1``.

    Metadata of others has none.
    """
    if not text.startswith(PREFIX):
        return {}
    parts = (part.partition("=") for part in text.split()[1:])
    found = {key: value for key, _, value in parts if value}
    if found.get("phase") not in PHASES:
        found.pop("phase", None)
    return found


def metadata_of(context: Context, stacks: Stacks) -> dict[str, Any]:
    """Return what an event in a snapshot has of its context beyond the stack."""
    parts = [
        f"{part}={value}"
        for part in _PARTS
        if (value := getattr(context, part)) and not any(map(str.isspace, value))
    ]
    parts += [f"thread={context.thread}"] if context.thread else []
    parts += ["grad=1"] if context.grad else []
    told: dict[str, Any] = {}
    if parts:
        told["user_metadata"] = PREFIX + " ".join(parts)
    if context.forward >= 0:
        told["forward_frames"] = [
            f'  File "{frame.filename}", line {frame.lineno}, in {frame.function}'
            for frame in reversed(stacks.of(context.forward))
        ]
    return told
