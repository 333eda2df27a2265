"""A real headless Chromium for the tests of reports: opens a file, tells what it logged and asked for."""

from __future__ import annotations

import base64
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.webelement import WebElement

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDE, NARROW = (1280, 900), (390, 844)
#: Where pictures are kept for people to look at; not in git.
ARTIFACTS = Path(__file__).resolve().parent.parent / "test-artifacts"


def programs() -> tuple[str, str]:
    """Chromium and its driver. Without them the test is skipped; with CI=true in the environment it fails."""
    browser = next((path for name in NAMES if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if browser and driver:
        return browser, driver
    text = "no Chromium with chromedriver (as root on Debian make setup installs them)"
    if os.environ.get("CI") == "true":
        pytest.fail(text)
    pytest.skip(text)


class Browser:
    """One Chromium with an empty profile of its own."""

    def __init__(self, profile: Path) -> None:
        browser, driver = programs()
        options = Options()
        options.binary_location = browser
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={WIDE[0]},{WIDE[1]}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(driver))
        self.driver.set_page_load_timeout(60)
        self.driver.set_script_timeout(60)

    def open(self, path: Path, scheme: str = "light", size: tuple[int, int] = WIDE) -> None:
        """Load a file in a colour scheme and a window size; what was logged before is forgotten."""
        is_narrow = size == NARROW
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": is_narrow}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.media(scheme)
        self.driver.get("about:blank")
        self.complaints()
        self.requests()
        self.driver.get(path.as_uri())
        assert self.js("return document.documentElement.dataset.ready") == "yes"

    def media(self, scheme: str = "light", media: str = "") -> None:
        """Emulate a colour scheme, and paper where ``media`` is print."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})

    def js(self, script: str, *arguments: Any) -> Any:
        """The value of a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def complaints(self) -> list[str]:
        """What the console got since it was last asked: errors, warnings, violations of the page's policy."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Every address that was asked for since the last time."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]

    def all(self, selector: str) -> list[WebElement]:
        """Elements by CSS selector."""
        return self.driver.find_elements("css selector", selector)

    def one(self, selector: str) -> WebElement:
        """The first element of a CSS selector; raises where there is none."""
        return self.driver.find_element("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        """Text of every element of a selector, hidden ones too."""
        found: list[str] = self.js(
            "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector
        )
        return found

    def picture(self, name: str) -> Path:
        """The whole page as a PNG among the artifacts."""
        size = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": self.js("return innerWidth"), "height": size["height"], "scale": 1}
        shot = self.driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
        )
        return self._kept(f"{name}.png", shot["data"])

    def paper(self, name: str) -> Path:
        """The page as it prints on A4, among the artifacts."""
        options = {"printBackground": True, "paperWidth": 8.27, "paperHeight": 11.69}
        return self._kept(f"{name}.pdf", self.driver.execute_cdp_cmd("Page.printToPDF", options)["data"])

    def _kept(self, name: str, data: str) -> Path:
        ARTIFACTS.mkdir(exist_ok=True)
        path = ARTIFACTS / name
        path.write_bytes(base64.b64decode(data))
        return path

    def quit(self) -> None:
        """End the browser and its driver."""
        self.driver.quit()
