"""Something done as soon as a module is imported, and nothing else changed about the import."""

import importlib
import importlib.util
import sys
from importlib.machinery import SourceFileLoader

import pytest

from tensorlens.frameworks import when_imported

NAME = "tensorlens_test_arrival"


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    before = [*sys.meta_path]
    path = tmp_path / f"{NAME}.py"
    path.write_text("import sys\nloader = __spec__.loader, __loader__\nvalue = 1\n")
    yield path
    sys.modules.pop(NAME, None)
    assert sys.meta_path == before


def test_callback_runs_after_the_module(source):
    seen = []

    def act():
        module = sys.modules[NAME]
        seen.append((module.value, module.__spec__._initializing))

    when_imported(NAME, act)
    module = importlib.import_module(NAME)
    assert seen == [(1, False)]
    assert module.loader == (module.__spec__.loader, module.__loader__)
    assert type(module.__spec__.loader) is SourceFileLoader
    importlib.reload(module)
    assert len(seen) == 1


def test_module_imported_before(source):
    importlib.import_module(NAME)
    seen = []
    when_imported(NAME, lambda: seen.append(1))
    assert seen == [1]


def test_an_import_that_fails_does_not_count(source):
    seen = []
    when_imported(NAME, lambda: seen.append(1))
    good = source.read_text()
    source.write_text("raise ValueError('broken, and longer than before, so that it is read')\n")
    with pytest.raises(ValueError, match="broken"):
        importlib.import_module(NAME)
    assert seen == [] and NAME not in sys.modules
    source.write_text(good)
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert seen == [1]


def test_asking_where_a_module_is_does_not_import_it(source):
    seen = []
    stop = when_imported(NAME, lambda: seen.append(1))
    spec = importlib.util.find_spec(NAME)
    assert spec is not None and spec.origin == str(source)
    assert spec.loader.get_source(NAME) == source.read_text()
    assert seen == []
    stop()


def test_two_that_wait_for_one_module_and_one_that_gave_up(source):
    seen = []
    when_imported(NAME, lambda: seen.append("first"))
    when_imported(NAME, lambda: seen.append("second"))
    when_imported(NAME, lambda: seen.append("third"))()
    importlib.import_module(NAME)
    assert sorted(seen) == ["first", "second"]


def test_a_module_that_does_not_exist():
    stop = when_imported(f"{NAME}_not_there", pytest.fail)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{NAME}_not_there")
    stop()


def test_callback_error_leaves_the_import(source):
    def act():
        raise KeyError("act")

    when_imported(NAME, act)
    with pytest.raises(KeyError, match="act"):
        importlib.import_module(NAME)
