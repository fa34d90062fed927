import sysconfig
from pathlib import Path

import pytest

from tensorlens.user_code import is_foreign


@pytest.mark.parametrize("folder", ["stdlib", "purelib", "scripts"])
def test_code_of_python_and_of_what_is_installed_is_not_the_users(folder: str) -> None:
    # the console script that starts a program is in the last of them
    assert is_foreign(str(Path(sysconfig.get_path(folder), "tensorlens")))


def test_code_beside_the_program_is_the_users(tmp_path: Path) -> None:
    assert not is_foreign(str(tmp_path / "train.py"))
