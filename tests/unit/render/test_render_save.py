import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import rendered_reports as reports

from tensorlens import LineReport, TensorlensError, render
from tensorlens.errors import UsageError
from tensorlens.render import file_content


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.mark.parametrize("name", ["html", ".html", "run.html", "a.b/run.x.HTML", Path("run.html")])
def test_the_ending_chooses_the_renderer(name: str | Path) -> None:
    assert render.checked_ending(name) == "html"


@pytest.mark.parametrize("extension", ["csv", "html", "json", "txt"])
def test_every_renderer_writes_its_extension(extension: str) -> None:
    assert render.checked_ending(f"out.{extension}") == extension


@pytest.mark.parametrize("name", ["run.xml", "run", "", ".", "run.json.gz", "run."])
def test_an_unknown_ending_lists_those_known(name: str) -> None:
    with pytest.raises(UsageError) as raised:
        render.checked_ending(name)
    assert str(raised.value).endswith(
        "the endings known are .csv, .folded, .html, .json, .perfetto.json, .pickle,"
        " .speedscope.json, .tlens, .tlens.gz, .trace.json, .txt"
    )
    assert "\n" not in str(raised.value)


def test_importing_render_imports_no_renderer() -> None:
    code = "import sys, tensorlens.render; print(sorted({'jinja2', 'tabulate'} & {*sys.modules}))"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert printed.stdout == "[]\n"


@pytest.mark.parametrize("kind", reports.KINDS)
def test_json_reads_back_equal(kind: str) -> None:
    report = reports.KINDS[kind]()
    text = file_content(report, "json")
    assert text.endswith("}\n")
    assert LineReport.from_json(text) == report


@pytest.mark.parametrize("extension", ["csv", "html", "json", "txt"])
@pytest.mark.parametrize("kind", ["empty", "hostile", "eight_devices"])
def test_save_writes_what_the_renderer_gives(tmp_path: Path, kind: str, extension: str) -> None:
    report = reports.KINDS[kind]()
    path = render.save(report, tmp_path / f"out.{extension}")
    content = render.file_content(report, extension)
    assert isinstance(content, str)
    assert path.read_bytes() == content.encode("utf-8", "backslashreplace")
    assert names_in(tmp_path) == [f"out.{extension}"]


def test_save_does_not_overwrite_unless_told(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("mine")
    with pytest.raises(UsageError) as raised:
        render.save(reports.one_line(), path)
    assert str(raised.value) == f"{path} exists: choose another name, or overwrite it with -f"
    assert path.read_text() == "mine"
    render.save(reports.one_line(), path, overwrite=True)
    assert LineReport.from_json(path.read_text()) == reports.one_line()


def test_save_goes_through_a_symbolic_link(tmp_path: Path) -> None:
    target, link = tmp_path / "real.json", tmp_path / "link.json"
    link.symlink_to(target)
    with pytest.raises(UsageError):
        render.save(reports.one_line(), link)
    render.save(reports.one_line(), link, overwrite=True)
    assert link.is_symlink()
    assert LineReport.from_json(target.read_text()) == reports.one_line()


def test_save_through_a_link_to_itself_is_one_line(tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(link)
    with pytest.raises(TensorlensError) as raised:
        render.save(reports.one_line(), link, overwrite=True)
    assert str(raised.value) == f"cannot write {link}: {os.strerror(errno.ELOOP)}"
    assert link.is_symlink()
    assert names_in(tmp_path) == ["link.json"]


def test_save_gives_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        path = render.save(reports.one_line(), tmp_path / "out.csv")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


def test_save_into_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "none" / "out.json"
    with pytest.raises(TensorlensError) as raised:
        render.save(reports.one_line(), path)
    assert str(raised.value) == f"cannot write {path}: No such file or directory"
    assert names_in(tmp_path) == []


def test_save_under_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TensorlensError, match=r"Not a directory$"):
        render.save(reports.one_line(), tmp_path / "file" / "out.json")


def test_save_over_a_folder_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.mkdir()
    with pytest.raises(TensorlensError) as raised:
        render.save(reports.one_line(), path, overwrite=True)
    assert str(raised.value) == f"cannot write {path}: it is a folder"
    assert names_in(tmp_path) == ["out.json"]


@pytest.mark.parametrize("overwritten", [False, True])
def test_a_full_disk_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwritten: bool
) -> None:
    path = tmp_path / "out.json"
    if overwritten:
        path.write_text("mine")

    def full(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(TensorlensError) as raised:
        render.save(reports.one_line(), path, overwrite=True)
    assert str(raised.value) == f"cannot write {path}: No space left on device"
    assert names_in(tmp_path) == (["out.json"] if overwritten else [])
    assert not overwritten or path.read_text() == "mine"


def test_an_interrupt_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        render.save(reports.one_line(), tmp_path / "out.json")
    assert names_in(tmp_path) == []
