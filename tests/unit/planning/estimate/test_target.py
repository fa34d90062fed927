"""What a program is found by."""

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
    for name in ("mk", "make", "unseen", "math", "sqrt"):
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
