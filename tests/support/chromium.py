"""A browser without a window."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest


@asynccontextmanager
async def chromium() -> AsyncIterator[Any]:
    """Start Chromium; skip the test where there is none."""
    playwright = pytest.importorskip("playwright.async_api")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium here")
    async with playwright.async_playwright() as started:
        opened = await started.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        await opened.close()
