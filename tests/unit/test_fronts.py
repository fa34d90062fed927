"""Tests know rooms and not their files, so that a file may move without a test changing."""

import re
from pathlib import Path

import tensorlens

TESTS = Path(__file__).parents[1]
PACKAGE = Path(tensorlens.__file__).parent
WINGS = ("frameworks", "planning")
"""Rooms that have rooms."""
IMPORT = re.compile(r"(?:from|import) tensorlens((?:\.\w+)+)")


def is_front(names: list[str]) -> bool:
    """Tell whether it is a room, a module beside the rooms, or one that users import."""
    if names[0] == "integrations":
        return True
    most = 2 if names[0] in WINGS else 1
    return len(names) <= most and (most == 1 or PACKAGE.joinpath(*names).is_dir())


def test_imports_end_at_a_room():
    deeper = {
        (path.name, name[1:])
        for path in TESTS.rglob("*.py")
        for name in IMPORT.findall(path.read_text())
        if not is_front(name[1:].split("."))
    }
    assert not deeper
