"""What a program is found by."""

import importlib.util
import sys

import pytest

from tensorlens.errors import UsageError
from tensorlens.planning.estimate import program, search_path


def test_search_path_in_a_folder_that_is_gone(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend("")
    assert search_path()[0] == str(folder)
    folder.rmdir()
    found = search_path()
    assert str(folder) not in found and "" not in found


TRAIN = """
import os.path, math as made
from math import sqrt as imported
def _helper(): ...
def build(): ...
def train():
    global later
    later = unseen = print
class Trainer:
    def make(self): ...
assigned = built = build
raise SystemExit("nothing of it runs")
"""


@pytest.mark.parametrize("place", ["train.py", "train"])
def test_function_is_looked_up_before_anything_runs(place, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    there = "os made imported build train later Trainer Trainer.make assigned built".split()
    for name in there:
        assert program(f"{place}:{name}").function == name
    for name in ("mk", "mk.make"):
        with pytest.raises(UsageError) as caught:
            program(f"{place}:{name}")
        assert str(caught.value) == (
            f"{place}:{name}: there is no {name!r} in {place}: it has _helper, build, train"
        )


@pytest.mark.parametrize(
    "source", ["from math import *", "def __getattr__(name): ...", "globals()['mk'] = print", "("]
)
def test_function_that_code_may_make_is_looked_for_in_the_module(source, tmp_path):
    (tmp_path / "train.py").write_text(source)
    assert program(str(tmp_path / "train.py:mk")).function == "mk"


def test_function_in_deep_code_and_long_numbers(tmp_path):
    deep = f"total = {' + '.join(['1'] * 1200)}\nlong = 0x{'f' * 6000}\ndef mk(): ..."
    (tmp_path / "train.py").write_text(deep)
    assert program(str(tmp_path / "train.py:mk")).function == "mk"
    # a word of the syntax tree, not of the source
    with pytest.raises(UsageError, match="there is no 'value'"):
        program(str(tmp_path / "train.py:value"))


def test_no_more_than_five_functions_are_named(tmp_path):
    train = tmp_path / "train.py"
    train.write_text("".join(f"def f{number}(): ...\n" for number in range(7)))
    with pytest.raises(UsageError, match=r"in train.py: it has f0, f1, f2, f3, f4$"):
        program(f"{train}:mk")
    train.write_text("steps = 3")
    with pytest.raises(UsageError, match=r"in train.py, nor any function$"):
        program(f"{train}:mk")


def test_module_is_run_as_python_runs_it(tmp_path, monkeypatch):
    package = tmp_path / "pkg"
    package.mkdir()
    for name in ("__init__", "__main__", "train"):
        (package / f"{name}.py").write_text("raise SystemExit")
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    for module, file in (("pkg.train", "train.py"), ("pkg", "__main__.py")):
        found = program(module)
        assert (found.module, found.file) == (module, str((package / file).resolve()))
        assert found.is_script
    for name in ("plain", "pkg.nope", "./pkg", "pkg.", "nope"):
        with pytest.raises(UsageError, match="is no file"):
            program(name)


def test_module_of_a_package_that_an_import_hook_finds(tmp_path, monkeypatch):
    package = tmp_path / "hidden" / "hooked"
    package.mkdir(parents=True)
    for name in ("__init__", "train"):
        (package / f"{name}.py").write_text("def make(): ...\nraise SystemExit")

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name != "hooked":
                return None
            file = str(package / "__init__.py")
            return importlib.util.spec_from_file_location(
                name, file, submodule_search_locations=[str(package)]
            )

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    assert program("hooked.train").file == str((package / "train.py").resolve())
    assert program("hooked.train:make").function == "make"
    with pytest.raises(UsageError, match=r"there is no 'mk' in hooked\.train: it has make"):
        program("hooked.train:mk")
