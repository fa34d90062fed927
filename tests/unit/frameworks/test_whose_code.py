import os
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorlens import user_code
from tensorlens.user_code import is_foreign


@pytest.mark.parametrize("folder", ["stdlib", "purelib", "scripts"])
def test_code_of_python_and_of_what_is_installed_is_not_the_users(folder: str) -> None:
    # the console script that starts a program is in the last of them
    assert is_foreign(str(Path(sysconfig.get_path(folder), "tensorlens")))


def test_code_beside_the_program_is_the_users(tmp_path: Path) -> None:
    assert not is_foreign(str(tmp_path / "train.py"))


@pytest.fixture
def no_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", none)
    user_code._folders.cache_clear()
    yield
    user_code._folders.cache_clear()


@pytest.mark.usefixtures("no_temporary_folder")
def test_without_a_folder_for_temporary_files() -> None:
    assert is_foreign(os.__file__)
    assert not is_foreign("/home/u/train.py")
