"""The switcher of versions of the pages, on two small builds with the theme and the files of the real ones."""

import functools
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page
from sphinx.errors import ConfigError

from docs._ext.versions import check, setup
from tests.support.chromium import chromium

ROOT = Path(__file__).parents[1]
OLD, NEW = "0.1.0", "0.2.0"
VERSIONS = [{"version": NEW, "released": "2026-12-01"}, {"version": OLD, "released": None}]
CONF = f"""
from docs.conf import html_sidebars
project, release, html_theme = "nsq_ha", {{release!r}}, "furo"
extensions = ["myst_parser", "docs._ext.versions"]
templates_path, html_static_path = [{str(ROOT / "docs/_templates")!r}], [{str(ROOT / "docs/_static")!r}]
html_css_files = ["side.css"]
versions_file = {{versions!r}}
"""
"""The contrast of a text with what is behind it, as WCAG counts it."""


def build(folder: Path, site: Path, version: str, versions: object, pages: tuple[str, ...]) -> subprocess.Popen[str]:
    """Start a build of pages into the version's folder of the site."""
    source = folder / version
    for page in ("index", *pages):
        (source / page).parent.mkdir(parents=True, exist_ok=True)
        (source / f"{page}.md").write_text(f"# The page {page} of {version}\n\nText.\n")
    names = "\n".join(pages)
    (source / "index.md").write_text(f"# Front page of {version}\n\n```{{toctree}}\n{names}\n```\n")
    (source / "versions.json").write_text(json.dumps(versions))
    (source / "conf.py").write_text(CONF.format(release=version, versions=str(source / "versions.json")))
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", str(source), str(site / version)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build two versions beside each other, of which the old one knows nothing of the new one."""
    folder, site = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("site")
    builds = [
        build(folder, site, OLD, VERSIONS[1:], ("how-to/both",)),
        build(folder, site, NEW, VERSIONS, ("how-to/both", "only-new")),
    ]
    for each in builds:
        printed, _ = each.communicate(timeout=200)
        assert each.returncode == 0, printed
    (site / "versions.json").write_text(json.dumps(VERSIONS))
    return site


in_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One for all tests; each has pages of its own."""
    async with chromium() as opened:
        yield opened


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def url(site: Path) -> Iterator[str]:
    """Serve the site."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def listed(page: Page) -> list[str]:
    """Return the entries of the switcher."""
    return [" ".join(text.split()) for text in await page.locator(".versions li").all_text_contents()]


@in_one_loop
async def test_the_switcher_needs_neither_server_nor_script(browser: Browser, site: Path) -> None:
    page = await browser.new_page(java_script_enabled=False)
    await page.goto((site / NEW / "how-to/both.html").as_uri())
    assert await page.locator(".versions summary").inner_text() == f"Version {NEW}"
    assert await listed(page) == [f"{NEW} 2026-12-01", f"{OLD} not released yet"]
    await page.locator(".versions summary").click()
    await page.get_by_role("navigation", name="Versions").get_by_role("link", name=OLD).click()
    await page.wait_for_url(f"**/{OLD}/index.html")
    assert f"Front page of {OLD}" in await page.locator("h1").inner_text()


@in_one_loop
@pytest.mark.slow
async def test_a_served_old_version_learns_of_a_new_one(browser: Browser, url: str) -> None:
    page = await browser.new_page()
    await page.goto(f"{url}/{OLD}/how-to/both.html")
    await page.locator(".newer-version").get_by_text(f"The newest release is {NEW}.").wait_for()
    assert await listed(page) == [f"{NEW} 2026-12-01", f"{OLD} not released yet"]
    await page.locator(".versions summary").click()
    await page.locator(f'.versions a[href$="/{NEW}/how-to/both.html"]').click()
    await page.wait_for_url(f"{url}/{NEW}/how-to/both.html")
    assert await page.locator(".newer-version").count() == 0


def test_a_build_of_a_version_that_is_not_listed_fails(tmp_path: Path) -> None:
    (tmp_path / "versions.json").write_text(json.dumps(VERSIONS))
    config = SimpleNamespace(release="0.3.0", versions_file=str(tmp_path / "versions.json"))
    with pytest.raises(ConfigError, match=r"does not list 0\.3\.0: add it"):
        check(cast("Any", None), cast("Any", config))
    app = mock.Mock()
    setup(app)
    app.connect.assert_any_call("config-inited", check)


def test_the_pages_of_each_version_are_published_beside_each_other(tmp_path: Path) -> None:
    def git(*words: str, folder: Path = tmp_path / "clone") -> str:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
        return done.stdout

    git("init", "--quiet", "--bare", "origin", folder=tmp_path)
    git("clone", "--quiet", "origin", "clone", folder=tmp_path)
    built = tmp_path / "clone" / "docs" / "_build" / "html"
    built.mkdir(parents=True)
    (tmp_path / "clone" / "docs" / "versions.json").write_text("[]")
    (tmp_path / "clone" / "a").write_text("a")
    git("add", "a")
    git("-c", "user.name=a", "-c", "user.email=a", "commit", "--quiet", "-m", "a")
    for version in ("0.1.0", "0.2.0", "0.2.0"):
        (built / "index.html").write_text(f"{version} {len(list(tmp_path.rglob('*')))}")
        script = ROOT / "scripts" / "publish_pages.sh"
        subprocess.run([script, version], cwd=tmp_path / "clone", check=True, timeout=60)
    files = git("ls-tree", "-r", "--name-only", "gh-pages", folder=tmp_path / "origin").split()
    assert files == [".nojekyll", "0.1.0/index.html", "0.2.0/index.html", "index.html", "versions.json"]
    assert "url=0.2.0/" in git("show", "gh-pages:index.html", folder=tmp_path / "origin")
