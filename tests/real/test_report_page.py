"""A report in headless Chromium: no errors, no network, tables that search and sort, and light or dark as requested.

Without Chromium none of this can be checked, and the test fails. Debian's package is `chromium`, which `.ci/run`
installs.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.command_line.calls import run
from tests.golden.archive import unpack

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NO_NETWORK = "--host-resolver-rules=MAP * ~NOTFOUND"
TRY = """
<script>
const cards = [...document.querySelectorAll("details")];
const card = cards.find(d => d.querySelector("h2").textContent.startsWith("Queues"));
const shown = () => [...card.querySelectorAll("tbody tr")].filter(r => r.offsetParent).map(r => r.cells[0].textContent);
const all = shown();
const search = card.querySelector("input");
search.value = "ord"; search.dispatchEvent(new Event("input", {bubbles: true}));
const found = shown();
search.value = ""; search.dispatchEvent(new Event("input", {bubbles: true}));
const column = [...card.querySelectorAll("th")].findIndex(h => h.textContent === "messages");
const counts = () => [...card.querySelectorAll("tbody tr")].map(r => Number(r.cells[column].dataset.v));
card.querySelectorAll("th")[column].click();
const once = counts();
card.querySelectorAll("th")[column].click();
const wide = document.documentElement.scrollWidth > window.innerWidth;
document.body.append(Object.assign(document.createElement("pre"),
  {id: "tried", textContent: JSON.stringify({all, found, once, twice: counts(), wide})}));
</script>
"""


def chromium(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM, "Chromium is not installed (apt-get install chromium): the report was seen in no browser"
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"]
    command += [f"--user-data-dir={folder / 'profile'}", NO_NETWORK, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not re.findall(r"CONSOLE.*", done.stderr)
    return done


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    file = folder / "report.html"
    run("report", unpack("shop-4.9.3", folder), "-o", file)
    return file


def test_tables_search_and_sort(page: Path, tmp_path: Path) -> None:
    tried = tmp_path / "tried.html"
    tried.write_text(page.read_text().replace("</body>", f"{TRY}</body>"))
    done = chromium(tmp_path, "--dump-dom", "--window-size=1280,900", tried.as_uri())
    (text,) = re.findall(r'<pre id="tried">(.*?)</pre>', done.stdout)
    results = json.loads(text)
    assert 0 < len(results["found"]) < len(results["all"])
    assert all("ord" in topic.lower() for topic in results["found"])
    rising = sorted(results["once"])
    assert sorted([results["once"], results["twice"]]) == [rising, rising[::-1]]
    assert not results["wide"]


def test_light_and_dark(page: Path, tmp_path: Path) -> None:
    brightness = {}
    for scheme, number in (("light", 1), ("dark", 0)):
        picture = tmp_path / f"{scheme}.png"
        settings = f"--blink-settings=preferredColorScheme={number}"
        chromium(tmp_path, settings, "--window-size=1280,1600", f"--screenshot={picture}", page.as_uri())
        pixels = np.asarray(Image.open(picture).convert("RGB"))
        assert pixels.shape[:2] == (1600, 1280)
        assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50
        brightness[scheme] = float(np.median(pixels)) / 255
    assert brightness["light"] > 0.8
    assert brightness["dark"] < 0.3
