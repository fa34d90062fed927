"""A compiler that takes no time: it gives what the real one made before, from the user's cache."""

from __future__ import annotations

from pathlib import Path

from tensorlens.native import build


def copied_compiler(part: build.NativePart, folder: Path) -> str:
    """Write a script that stands for the compiler of one part, and return its path."""
    build.load(part)
    cache = build.cache_folder()
    assert cache is not None
    library = next(cache.glob(f"{part.name}-{build._key(part)}-*.so"))
    script = folder / "compiler"
    script.write_text(f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ncat {library} > "$2"\n')
    script.chmod(0o755)
    return str(script)
