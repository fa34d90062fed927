"""Lets a CUDA build of torch be imported without CUDA: gigabytes that the CPU does not need.

``python cuda_stand_ins.py`` looks which libraries of CUDA the installed torch links to and does not
find, and puts libraries of these names beside torch's own. Every function in them answers 100
(``cudaErrorNoDevice``), so torch finds no card. Needs a C compiler and ``readelf``.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

CUDA = re.compile(r"lib(cu|nv|nccl)\w*\.so\.\d+$")
ENTRY = re.compile(r"_{0,2}(cu|nv|nccl)\w+$", re.IGNORECASE)
TEXTS = {"cudaGetErrorString", "cudaGetErrorName"}
ANY = ""
"""The version of a symbol that has none."""

Symbols = dict[str, set[str]]


def main() -> None:
    """Write what is missing."""
    spec = find_spec("torch")
    assert spec is not None and spec.origin is not None, "torch is not installed"
    package = Path(spec.origin).parent
    folder = package / "lib"
    ours = [*folder.glob("*.so*"), *package.glob("_C.*.so")]
    needed, symbols = undefined(ours)
    missing = sorted(name for name in needed if CUDA.match(name) and not is_installed(name, folder))
    runtime = next((name for name in missing if name.startswith("libcudart.")), None)
    for name in missing:
        versions = dict(symbols[name])
        if name == runtime:
            versions[ANY] = symbols[ANY].get(ANY, set())
        build(folder / name, versions)
    print(f"{len(missing)} stand-ins for libraries of CUDA")


def undefined(libraries: Iterable[Path]) -> tuple[set[str], dict[str, Symbols]]:
    """Return the libraries that these need, and by library and version the symbols they want."""
    needed: set[str] = set()
    symbols: dict[str, Symbols] = defaultdict(lambda: defaultdict(set))
    for library in libraries:
        text = subprocess.run(
            ["readelf", "--wide", "--dynamic", "--version-info", "--dyn-syms", library],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        needed.update(re.findall(r"\(NEEDED\).*\[(.+)\]", text))
        owners = {}
        for entry in re.finditer(r"File: (\S+)|Name: (\S+)  Flags", text):
            if entry[1]:
                owner = entry[1]
            else:
                owners[entry[2]] = owner
        for name, version in re.findall(r" UND (\w+)(?:@(\S+))?", text):
            if version:
                symbols[owners[version]][version].add(name)
            elif ENTRY.match(name):
                symbols[ANY][ANY].add(name)
    return needed, symbols


def is_installed(name: str, folder: Path) -> bool:
    """Tell whether a library is in a package of NVIDIA's beside torch."""
    beside = folder.parent.parent
    return any(any((beside / each).glob(f"**/{name}")) for each in ("nvidia", "cusparselt"))


def build(library: Path, versions: Symbols) -> None:
    """Compile one library whose symbols have these versions."""
    names = set().union(*versions.values())
    lines = [
        f'const char *{name}(void) {{ return "a stand-in of CUDA"; }}'
        if name in TEXTS
        else f"long {name}(void) {{ return 100; }}"
        for name in sorted(names)
    ]
    script = "".join(
        f"{version} {{ global: {' '.join(f'{name};' for name in sorted(each))} }};\n"
        for version, each in versions.items()
        if version != ANY and each
    )
    with tempfile.TemporaryDirectory() as folder:
        source, map_file = Path(folder, "stand_in.c"), Path(folder, "stand_in.map")
        source.write_text("\n".join(lines) + "\n")
        map_file.write_text(script)
        extra = [f"-Wl,--version-script={map_file}"] if script else []
        command = ["cc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{library.name}"]
        subprocess.run([*command, *extra, "-o", library, source], check=True)


if __name__ == "__main__":
    main()
