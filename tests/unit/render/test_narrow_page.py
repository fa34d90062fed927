"""Pages of 500 pixels in a browser."""

import html
import re
import subprocess
from pathlib import Path

import pytest
import rendered_estimates as estimates
from test_recording_browser import BROWSER, FLAGS

from tensorlens import Suggestions
from tensorlens.planning.suggest import Suggestion

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium")

# where the titles and the cells of the first table begin, titles without text as well
SCRIPT = """
<pre id="said"></pre>
<script>
const ends = (row) => [...row.cells].filter((cell) => getComputedStyle(cell).display != "none")
  .map((cell) => Math.round(cell.getBoundingClientRect().left)).join(" ");
const {rows} = document.querySelector("table.tl-lines");
document.getElementById("said").textContent = ends(rows[0]) + "\\n" + ends(rows[1]);
</script>
"""


CHANGES = [Suggestion("bf16", name, "", "code", 70 << 20, 30 << 20) for name in ("bf16", "again")]
"""Their numbers have no title."""
PAGES = {
    "estimate": (estimates.training().to_html(), 5),
    "suggestions": (Suggestions((*CHANGES,), "cpu", 100 << 20, "in backward").to_html(), 6),
}


@pytest.mark.parametrize("name", PAGES)
def test_titles_stand_above_their_columns(tmp_path: Path, name: str) -> None:
    page = tmp_path / "page.html"
    shown, columns = PAGES[name]
    page.write_text(shown + SCRIPT, "utf-8")
    flags = [each for each in FLAGS if not each.startswith("--window-size")]
    done = subprocess.run(
        [
            *(BROWSER, *flags, "--window-size=500,900"),
            *(f"--user-data-dir={tmp_path / 'profile'}", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = re.search(r'<pre id="said">(.*?)</pre>', done.stdout, re.S)
    assert found, done.stderr
    titles, cells = html.unescape(found[1]).split("\n")
    assert titles == cells
    assert len(titles.split()) == columns
