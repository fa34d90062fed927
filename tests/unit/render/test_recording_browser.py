"""A recording's page in a browser: hostile names do nothing, and any instant can be chosen."""

import html
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import rendered_recordings as recordings
from rendered_recordings import HOSTILE

from tensorlens import Recording
from tensorlens.records import ALLOC, Context, EventLog, Frame, Label
from tensorlens.render import printable

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium")

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
    *("--virtual-time-budget=4000", "--window-size=1300,1800", "--dump-dom"),
)
DRIVER = """
<pre id="said"></pre>
<script>
const said = [], say = (text) => said.push(text);
window.onerror = (text) => say("error: " + text);
window.alert = () => say("alert");
const section = document.querySelector(".tl-recording");
const plot = section.querySelector(".tl-plot"), box = plot.getBoundingClientRect();
const title = () => say(section.querySelector(".tl-chosen").textContent);
const names = () => say([...section.querySelectorAll("table.tl-blocks tbody tr")]
  .map((row) => row.cells[0].textContent).join(" | "));
const rest = () => say(section.querySelector("table.tl-blocks").closest(".tl-table")
  .querySelector(".tl-rest").textContent);
const click = (where) => plot.dispatchEvent(
  new MouseEvent("click", {clientX: box.left + where * box.width, bubbles: true}));
const cells = (name) => say([...section.querySelectorAll("table.tl-" + name + " tbody tr")]
  .map((row) => [...row.cells].map((cell) => cell.textContent).join(" ")).join(" | "));
const drag = (from, to) => {
  const at = (where) => ({clientX: box.left + where * box.width, bubbles: true});
  plot.dispatchEvent(new MouseEvent("mousedown", at(from)));
  window.dispatchEvent(new MouseEvent("mousemove", at(to)));
  window.dispatchEvent(new MouseEvent("mouseup", at(to)));
  plot.dispatchEvent(new MouseEvent("click", at(to)));
};
const sort = (key) => section.querySelector("th[data-key=" + key + "]").click();
const filter = (text) => {
  const input = section.querySelector("input");
  input.value = text;
  input.dispatchEvent(new Event("input"));
};
function drive() {
  // the page's data are read asynchronously
  if (!plot.classList.contains("tl-live")) return setTimeout(drive, 1);
  %s
  document.getElementById("said").textContent = said.join("\\n");
}
drive();
</script>
"""


def said(folder: Path, kind: str, steps: str) -> list[str]:
    page = folder / "page.html"
    text = recordings.KINDS[kind]().to_html() + DRIVER % steps
    page.write_text(text, "utf-8", errors="backslashreplace")
    done = subprocess.run(
        [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = re.search(r'<pre id="said">(.*?)</pre>', done.stdout, re.S)
    assert found, done.stderr
    return html.unescape(found[1]).split("\n")


def test_a_click_shows_what_was_resident_then(tmp_path: Path) -> None:
    # 3.5 of some 7.07 ms: at the peak, which was after 3 ms; 6.5 ms: in the optimizer
    steps = "title(); click(2.5 / 7.07); title(); names(); click(6.5 / 7.07); title();"
    steps += "click(3.5 / 7.07); title(); click(0.01); title();"
    steps += "section.querySelector('[data-go=\"1\"]').click(); title();"
    peak = "At the peak: 268.00 KiB in 5 blocks, after 3.00 ms"
    assert said(tmp_path, "training", steps) == [
        peak,
        "Then: 168.00 KiB in 4 blocks, after 2.00 ms",
        "fc1.weight | fc1: aten::addmm | step(): x | aten::sum at train.py:3",
        "Then: 250.00 KiB in 4 blocks, after 6.00 ms",
        peak,
        "Then: 120.00 KiB in 2 blocks, at the start",
        "Then: 160.00 KiB in 3 blocks, after 1.00 ms",
    ]


def test_a_dropped_peak_is_shown_first(tmp_path: Path) -> None:
    go = "section.querySelector('[data-go=\"%s\"]').click(); title(); names();"
    ages = "say([...section.querySelectorAll('table.tl-blocks tbody tr')]"
    ages += ".map((row) => row.cells[3].textContent).join(' | '));"
    steps = f"title(); names(); {ages} {go % 1} {ages} {go % -1} click(0.1); title();"
    steps += f"click(0.999); title(); {ages} {go % 'peak'}"
    peak = "At the peak: 510 B in 2 blocks, after 2.00 ms, before the first event that was kept"
    of_peak = "fc1: aten::addmm | before the recording"
    highest = "At the highest instant that was kept: 35 B in 3 blocks, after 7.00 ms"
    assert said(tmp_path, "dropped", steps) == [
        *(peak, of_peak, "0 ns | before"),
        "Then: 15 B in 2 blocks, at the first event that was kept",
        "before the recording | aten::sum at train.py:3",
        "before | 4.00 ms",
        *(peak, of_peak, highest),
        *("Then: 15 B in 2 blocks, after 9.00 ms", "before | 6.00 ms"),
        *(peak, of_peak),
    ]


def test_roles_lines_and_source_follow_the_click(tmp_path: Path) -> None:
    source = "say([...section.querySelectorAll('td[data-line]')]"
    source += ".filter((cell) => cell.textContent)"
    source += ".map((cell) => cell.dataset.line + ' ' + cell.textContent).join(' | '));"
    steps = f"click(1.5 / 7.07); cells('roles'); cells('by-line'); {source}"
    assert said(tmp_path, "training", steps) == [
        "parameter 100.00 KiB 62.5 % | activation 40.00 KiB 25.0 % | input 20.00 KiB 12.5 %",
        "120.00 KiB 75.0 % before the recording  | 40.00 KiB 25.0 % train.py:2 h = net(x)",
        "train.py:2 40.00 KiB",
    ]


def test_the_largest_line_and_tensor_follow_the_click(tmp_path: Path) -> None:
    largest = "say([...section.querySelectorAll('.tl-largest div')]"
    largest += ".map((fact) => fact.textContent).join(' | '));"
    found = said(tmp_path, "training", f"{largest} click(1.5 / 7.07); {largest}")
    assert found[1] == (
        "linetrain.py:2, 40.00 KiB (25.0 %)h = net(x) | "
        "tensorfc1.weight, 100.00 KiB (62.5 %), parameter"
    )
    assert found[0] != found[1] and found[0].startswith("line")


def test_a_drag_zooms_and_leaves_the_instant(tmp_path: Path) -> None:
    view = "say(section.querySelector('.tl-plot svg').getAttribute('viewBox'));"
    hidden = "say(String(section.querySelector('.tl-minimap').hidden));"
    steps = f"{hidden} drag(0.25, 0.75); {view} {hidden} title(); click(0.001); title();"
    steps += f"section.querySelector('.tl-controls button:last-of-type').click(); {view} {hidden}"
    found = said(tmp_path, "training", steps)
    peak = "At the peak: 268.00 KiB in 5 blocks, after 3.00 ms"
    # a quarter of some 7.07 ms is after 1.77 ms
    then = "Then: 160.00 KiB in 3 blocks, after 1.00 ms"
    assert found[0] == "true"
    begin, _, width, height = map(float, found[1].split())
    assert (round(begin, -2), round(width, -2), height) == (25_000, 50_000, 1000)
    assert found[2:5] == ["false", peak, then]
    assert found[5:] == ["0 0 100000 1000", "true"]


def test_rows_are_sorted_and_filtered(tmp_path: Path) -> None:
    steps = "sort('age'); names(); sort('age'); names(); sort('name'); names();"
    steps += "filter('FC1 train.py:2'); names(); rest();"
    assert said(tmp_path, "training", steps) == [
        "fc1.weight | step(): x | fc1: aten::addmm | aten::sum at train.py:3 | fc1.weight.grad",
        "fc1.weight.grad | aten::sum at train.py:3 | fc1: aten::addmm | fc1.weight | step(): x",
        "aten::sum at train.py:3 | fc1.weight | fc1.weight.grad | fc1: aten::addmm | step(): x",
        "fc1.weight.grad | fc1: aten::addmm",
        "2 blocks match, 140.00 KiB",
    ]


def alike() -> Recording:
    log = EventLog()
    stack = log.stacks.push(-1, Frame("train.py", 3, "<module>"))
    for size in (100, 101, 102):
        log.append(ALLOC, "cpu", size, size, 1, stack, Context(op="aten::lstm", grad=True))
    for number in (0, 2, 4, 6, 8):
        row = log.append(ALLOC, "cpu", number + 1, 50, 2, stack)
        log.name(row, Label(f"h[{number}].w", "parameter"))
    for number in (1, 2):
        row = log.append(ALLOC, "cpu", number + 20, 40, 3, stack)
        log.name(row, Label(f"fc{number}.weight", "parameter"))
    return Recording(log)


def test_rows_of_a_page_are_those_of_the_text(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(recordings.KINDS, "alike", alike)
    (names,) = said(tmp_path, "alike", "names();")
    shown = ["aten::lstm at train.py:3 x 3", "h[0...8].w x 5", "fc1.weight", "fc2.weight"]
    assert names.split(" | ") == shown
    rows = [line.split("  ") for line in str(alike()).splitlines()]
    assert [row[1].strip() for row in rows if len(row) > 1 and row[1].strip() in shown] == shown


def test_hostile_names_are_text(tmp_path: Path) -> None:
    steps = "names(); title(); filter('<b>'); rest();"
    steps += "say(String(document.querySelectorAll('b, iframe').length));"
    name = printable(HOSTILE)
    assert said(tmp_path, "hostile", steps) == [
        f"{name} | {name} | {name}: {name}",
        "At the peak: 220.00 KiB in 3 blocks, after 6 ns",
        "3 blocks match, 220.00 KiB",
        "0",
    ]
