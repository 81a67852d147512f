"""A headless Chromium, driven by selenium, for tests of the live page."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def chromium(*, width: int = 1280, dark: bool = False) -> Iterator[Any]:
    """A browser; without one the test is skipped, and says what is missing."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium: pip install selenium")
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    if not all(programs.values()):
        pytest.skip("no Chromium: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(programs["chromium"])
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=programs["chromedriver"])
    driver = webdriver.Chrome(options=options, service=service)
    try:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        yield driver
    finally:
        driver.quit()


def wait(driver: Any, until: Callable[[str], bool], seconds: float = 60) -> str:
    """The text of the page, once it is as it should be."""
    from selenium.webdriver.support.ui import WebDriverWait

    def text(driver: Any) -> str:
        return str(driver.execute_script("return document.body.innerText"))

    try:
        WebDriverWait(driver, seconds).until(lambda driver: until(text(driver)))
    except Exception as error:
        raise AssertionError(text(driver)) from error
    return text(driver)
