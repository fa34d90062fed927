"""What a program is found by."""

from tensorlens.planning.estimate import search_path


def test_search_path_in_a_folder_that_is_gone(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend("")
    assert search_path()[0] == str(folder)
    folder.rmdir()
    found = search_path()
    assert str(folder) not in found and "" not in found
