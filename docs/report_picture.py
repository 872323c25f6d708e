"""Draw the picture of README: the report of the bundled example in a browser."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURE = Path(__file__).resolve().parent / "images" / "report.png"
_WIDTH, _HEIGHT = 1120, 1010


def report_picture() -> None:
    """Fit the example and photograph its page; needs Chromium and ``curvi[browser]``."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "curvi", "fit", "--out", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603, our own
        with sync_playwright() as driver:
            found = shutil.which("chromium")
            browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
            size = {"width": _WIDTH, "height": _HEIGHT}
            page = browser.new_page(viewport=size, device_scale_factor=1.25, color_scheme="light")
            page.goto((Path(folder) / "report.html").as_uri())
            page.get_by_role("button", name="by certainty").click()
            page.screenshot(path=str(PICTURE))
            browser.close()


if __name__ == "__main__":
    report_picture()
