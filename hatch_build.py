"""Adds native parts that were built ahead to a wheel, and names the machine that they are for.

``packaging/prebuilt.py FOLDER`` makes them; TENSORLENS_PREBUILT names the folder and
TENSORLENS_PLATFORM the wheel's platform. Without these the wheel is pure.
"""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PrebuiltHook(BuildHookInterface):  # type: ignore[type-arg]
    """The hook that hatchling calls for a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Put the folder into the wheel as ``tensorlens/native/prebuilt``."""
        folder = os.environ.get("TENSORLENS_PREBUILT")
        if not folder or version == "editable":
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{os.environ['TENSORLENS_PLATFORM']}"
        build_data["force_include"][folder] = "tensorlens/native/prebuilt"
