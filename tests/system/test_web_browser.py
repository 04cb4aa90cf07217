"""The example page and extension, the record and the outbox in real browsers, with real servers."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

from benchmarks.behind_nginx import NGINX
from browser import Page, find
from firefox import Marionette
from web_built import WEB, need
from web_live import Survey, site

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(NGINX is None or not shutil.which("openssl"), reason="needs nginx, openssl"),
]


@pytest.fixture(autouse=True)
def _needs() -> None:
    need(WEB / "dist" / "fedtally.js")


class Chromium(Page):
    """A Chromium whose tabs the tests ask for values."""

    def __init__(self, folder: Path) -> None:
        if find() is None:
            assert os.environ.get("FEDTALLY_REQUIRE_BROWSER") != "1"
            pytest.skip("there is no Chromium")
        super().__init__(folder)

    inner = Page.value

    def install(self, folder: Path) -> str:
        """Load an extension, and return where its pages lie."""
        name = self.extend(folder)
        self.tab()  # since tabs of an extension die with its earlier version
        return f"chrome-extension://{name}"


class Firefox(Marionette):
    """A Firefox, asked likewise."""

    complaints: tuple[str, ...] = ()  # of which Marionette tells nothing

    def __init__(self, folder: Path) -> None:
        program = os.environ.get("FEDTALLY_FIREFOX")
        if program is None:
            pytest.skip("FEDTALLY_FIREFOX names no Firefox")
        profile = folder / "firefox"
        profile.mkdir(exist_ok=True)
        super().__init__(program, {}, str(profile))

    def go(self, url: str) -> None:
        self.ask("WebDriver:Navigate", {"url": url})

    def value(self, expression: str) -> Any:
        script = (
            "const done = arguments[0];"
            f" (async () => ({expression}))().then(found => done([found]), e => done(`${{e}}`));"
        )
        found = self.run(script)
        assert isinstance(found, list), found
        return found[0]

    def inner(self, expression: str) -> Any:
        """Return a value of the page's own world; it must have no policy against `eval`.

        Scripts of Marionette have a world beside it, in which nothing can be imported.
        """
        text = f"(async () => JSON.stringify([await ({expression})]))()"
        script = (
            "const [text, done] = arguments;"
            " window.eval(text).then(found => done(found), e => done(`${e}`));"
        )
        found = json.loads(self.run(script, text))
        return found[0]

    def install(self, folder: Path) -> str:
        """Load an extension, let it ask the hosts that it names, and return where its pages lie.

        Its person would allow new hosts of a later version: Firefox does not by itself.
        """
        name = self.ask("Addon:Install", {"path": str(folder), "temporary": True})["value"]
        hosts = json.loads((folder / "manifest.json").read_text())["host_permissions"]
        self.ask("Marionette:SetContext", {"value": "chrome"})
        module = "resource://gre/modules/ExtensionPermissions.sys.mjs"
        given = json.dumps({"origins": hosts, "permissions": []})
        policy = f"WebExtensionPolicy.getByID({json.dumps(name)})"
        url = self.value(
            f"ChromeUtils.importESModule('{module}').ExtensionPermissions"
            f".add({json.dumps(name)}, {given}, {policy}.extension).then(() => {policy}.getURL(''))"
        )
        self.ask("Marionette:SetContext", {"value": "content"})
        return str(url).rstrip("/")


BROWSERS = {"chromium": Chromium, "firefox": Firefox}


def wait(value: Callable[[str], Any], expression: str) -> Any:
    """Return the value of an expression, once it is true."""
    end = time.monotonic() + 60
    while not (found := value(expression)):
        assert time.monotonic() < end, (expression, value("document.body.innerText")[:500])
        time.sleep(0.05)
    return found


SAID = "document.getElementById('said').textContent"


def said(browser: Any, words: str) -> str:
    return str(wait(browser.value, f"{SAID}.includes({json.dumps(words)}) && {SAID}"))


def enrolled(browser: Any) -> str:
    """Return the line that the page hands to the registrar."""
    said(browser, "Hand the line below")
    return str(browser.value("document.getElementById('proof').textContent"))


def choose(browser: Any, item: str) -> None:
    """Choose an item and report it, as a person does."""
    said(browser, "Choose an item")
    browser.value(
        f"(document.getElementById('item').value = {json.dumps(item)},"
        " document.getElementById('report').click())"
    )


def requests(browser: Any) -> list[str]:
    found = "[...document.getElementById('sent').children].map(line => line.textContent)"
    return list(browser.value(found))


OTHERS = {0: "apple", 1: "apple", 2: "pear"}  # of Python's people


@pytest.mark.promise
@pytest.mark.parametrize("is_secure", [False, True], ids=["http://localhost", "https"])
@pytest.mark.parametrize("kind", BROWSERS)
def test_a_page_enrols_and_reports(tmp_path: Path, kind: str, is_secure: bool) -> None:
    survey = Survey(tmp_path, is_secure=is_secure)
    with site(survey.site, is_secure=is_secure) as origin, BROWSERS[kind](tmp_path) as browser:
        browser.go(f"{origin}/index.html")
        line = enrolled(browser)
        assert requests(browser) == []
        with survey.open([line], len(OTHERS) + 1, (origin,)) as servers:
            browser.go(f"{origin}/index.html")
            choose(browser, "<i>quince</i>")
            said(browser, "Both servers have your report")
            check_requests(browser, servers)
            browser.go(f"{origin}/index.html")
            choose(browser, "apple")
            said(browser, "SpentError")
            survey.send(servers, OTHERS)
            survey.check_sum(servers, [*OTHERS.values(), "<i>quince</i>"])
        if kind == "chromium":
            asked = {url for url in browser.requests if not url.startswith(origin)}
            assert len(asked) == 4 and all(url.startswith(servers_of(servers)) for url in asked)
        assert not browser.complaints


def servers_of(servers: Any) -> tuple[str, ...]:
    return tuple(servers.url(side) for side in ("helper", "leader"))


def check_requests(browser: Any, servers: Any) -> None:
    """The page shows what left: a question to each server, and a frame, the helper's first."""
    helper, leader = servers_of(servers)
    words = [line.split() for line in requests(browser)]
    assert [each[0] for each in words] == ["GET", "GET", "PUT", "PUT"]
    assert [each[1].startswith(to) for each, to in zip(words, 2 * (helper, leader), strict=True)]
    sizes = [int(each[2]) for each in words]
    assert sizes[:2] == [0, 0] and 0 < sizes[2] < sizes[3] == servers.folders["leader"].report_bytes


@pytest.mark.promise
@pytest.mark.parametrize("name", ["fedtally", "survey", "page"])
def test_a_changed_script_stops_the_page(tmp_path: Path, name: str) -> None:
    survey = Survey(tmp_path)
    place = survey.site / f"{name}.js"
    text = place.read_text()
    with site(survey.site) as origin, Chromium(tmp_path) as browser:
        place.write_text(f"{text}\nglobalThis.isChanged = true;\n")
        browser.go(f"{origin}/index.html")
        time.sleep(1)  # in which a whole page enrols
        assert browser.value("[globalThis.isChanged ?? false, " + SAID + "]") == [False, "..."]
        assert any("integrity" in each for each in browser.complaints), browser.complaints
        place.write_text(text)
        browser.go(f"{origin}/index.html")
        enrolled(browser)


@pytest.mark.promise
@pytest.mark.parametrize("kind", BROWSERS)
def test_an_extension_enrols_and_reports(tmp_path: Path, kind: str) -> None:
    survey = Survey(tmp_path, extension="survey@example.org")
    with BROWSERS[kind](tmp_path) as browser:
        browser.go(f"{browser.install(survey.site)}/index.html")
        line = enrolled(browser)
        with survey.open([line], len(OTHERS) + 1, ()) as servers:  # no origin is listed
            browser.go(f"{browser.install(survey.site)}/index.html")
            choose(browser, "plum")
            said(browser, "Both servers have your report")
            check_requests(browser, servers)
            survey.send(servers, OTHERS)
            survey.check_sum(servers, [*OTHERS.values(), "plum"])
        assert not browser.complaints


@contextmanager
def enrolled_site(
    folder: Path, kind: str, names: list[str]
) -> Iterator[tuple[Survey, str, list[str]]]:
    """Let one browser of a folder enrol several records, of one key each; give their proofs."""
    survey = Survey(folder)
    with site(survey.site) as origin:
        with BROWSERS[kind](folder) as browser:
            browser.go(f"{origin}/page.js")  # a place without a script, and without a policy
            lines = [
                script(
                    browser,
                    f"const record = await web.Record.open('{name}');"
                    " const { registrar, purpose } = survey;"
                    " return web.register(await record.enrol(), registrar, purpose);",
                )
                for name in names
            ]
        yield survey, origin, lines


_START = (
    "const [web, { survey }] = await Promise.all([import('/fedtally.js'), import('/survey.js')]);"
)
_BEGIN = """
  const record = await web.Record.open(name);
  const plan = await web.readPlan(survey.plan, survey.fingerprint, { minHonest: 2 });
  const outbox = new web.Outbox(record, plan, survey.servers);
  const entry = () => record.entry(`${survey.fingerprint}/0`);
  const { candidates } = survey;
  const send = async () => {
    const identity = await record.identity() ?? await record.enrol();
    return outbox.report(0, identity, "plum", { round: 0, candidates })
      .catch(error => error.name);
  };
"""


def script(browser: Any, body: str) -> Any:
    """Return what a script with the library returns."""
    return browser.inner(f"(async () => {{ {_START} {body} }})()")


def with_outbox(browser: Any, name: str, body: str) -> Any:
    """Return what a script returns that has the outbox of a record."""
    return script(browser, f"const name = {json.dumps(name)}; {_BEGIN} {body}")


DEATHS = [(write, is_after) for write in ("spend", "note", "end") for is_after in (False, True)]


@pytest.mark.promise
@pytest.mark.parametrize("kind", BROWSERS)
def test_a_browser_is_killed_before_and_after_each_write(tmp_path: Path, kind: str) -> None:
    names = [f"{write}-{is_after}" for write, is_after in DEATHS]
    with (
        enrolled_site(tmp_path, kind, names) as (survey, origin, lines),
        survey.open(lines, len(OTHERS) + len(names), (origin,)) as servers,
    ):
        for name, (write, is_after) in zip(names, DEATHS, strict=True):
            with BROWSERS[kind](tmp_path) as browser:
                browser.go(f"{origin}/page.js")
                browser.inner("globalThis.isThere = false")
                with_outbox(
                    browser,
                    name,
                    f"""
                    const write = record.{write}.bind(record);
                    record.{write} = async (...given) => {{
                      if ({json.dumps(is_after)}) await write(...given);
                      globalThis.isThere = true;
                      await new Promise(() => {{}});  // until it is killed
                    }};
                    send();
                    """,
                )
                wait(browser.inner, "globalThis.isThere")
            is_spent = write != "spend" or is_after
            is_over = write == "end" and is_after
            with BROWSERS[kind](tmp_path) as browser:
                browser.go(f"{origin}/page.js")
                entry = with_outbox(browser, name, "return entry();")
                assert (entry is not None) == is_spent, name
                fate = with_outbox(browser, name, "return outbox.resume(0);")
                assert fate == ("accepted" if is_spent and not is_over else None), name
                again = with_outbox(browser, name, "return send();")
                assert again == ("SpentError" if is_spent else "accepted"), name
        survey.send(servers, OTHERS)
        survey.check_sum(servers, [*OTHERS.values(), *(["plum"] * len(names))])


@pytest.mark.promise
def test_whoever_may_not_report_spends_nothing_and_nobody_counts_twice(tmp_path: Path) -> None:
    names = ["tabs", "cleared"]
    with (
        enrolled_site(tmp_path, "chromium", names) as (survey, origin, lines),
        site(survey.site) as stranger,
        survey.open(lines, len(OTHERS) + len(names), (origin,)) as servers,
        Chromium(tmp_path) as browser,
    ):
        browser.go(f"{stranger}/page.js")  # an origin that is not listed
        assert with_outbox(browser, "tabs", "return send();") == "NotOpenError"
        assert with_outbox(browser, "tabs", "return entry();") is None
        for day in (-86_400_000, 86_400_000):
            browser.go(f"{origin}/page.js")  # where the clock is right, until it is set
            clock = f"const now = Date.now(); Date.now = () => now + {day};"
            assert with_outbox(browser, "tabs", f"{clock} return send();") == "NotOpenError"
        assert with_outbox(browser, "tabs", "return entry();") is None
        tabs = [browser.first, browser.tab()]
        for tab in tabs:
            browser.turn(tab)
            browser.go(f"{origin}/page.js")  # whose clock is right again
            with_outbox(browser, "tabs", "globalThis.fate = send();")
        fates = []
        for tab in tabs:
            browser.turn(tab)
            fates.append(browser.value("globalThis.fate"))
        assert sorted(fates) == ["SpentError", "accepted"]
        assert with_outbox(browser, "cleared", "return send();") == "accepted"
        forget = (
            "record.close(); return new Promise((resolve, reject) => {"
            " const asked = indexedDB.open(name); asked.onerror = reject;"
            " asked.onsuccess = () => {"
            "  const cleared = asked.result.transaction('releases', 'readwrite');"
            "  cleared.objectStore('releases').clear();"
            "  cleared.oncomplete = () => { asked.result.close(); resolve(true); }; }; });"
        )
        assert with_outbox(browser, "cleared", forget)
        assert with_outbox(browser, "cleared", "return send();") == "not counted"
        delete = (  # while the scripts above have the record open
            "return new Promise((resolve, reject) => {"
            " const asked = indexedDB.deleteDatabase(name); asked.onerror = reject;"
            " asked.onblocked = reject; asked.onsuccess = () => resolve(true); });"
        )
        assert with_outbox(browser, "cleared", delete)
        assert with_outbox(browser, "cleared", "return record.identity();") is None
        assert with_outbox(browser, "cleared", "return send();") == "not counted"  # a new key
        survey.send(servers, OTHERS)
        survey.check_sum(servers, [*OTHERS.values(), *(["plum"] * len(names))])
