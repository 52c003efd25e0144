"""The page in a real browser: no part of the default tests, because a browser is large.

    apt-get install chromium-headless-shell
    CHROMIUM=chromium-headless-shell pytest tests/plugins/serve/page_job.py
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import deque
from itertools import count
from select import select
from typing import Any

import pytest
from attrs import evolve

from ninfer_core.api import CapacityError
from ninfer_core.engine.status import EngineStatus, TokenCounts
from ninfer_core.speculation.counts import DraftCounts
from ninfer_core.state.prefix_cache import CacheStatistics

ROUTES = ("ninfer_serve.page.routes:routes", "ninfer_serve.openai.routes:routes")
STATUS = EngineStatus(
    cycle=70, running=3, reading=1, replaying=0, waiting=5, paused=0, page_bytes=1 << 20,
    num_pages=4000, free_pages=1000, sequence_pages=1000, host_pages=200, free_host_pages=100,
    pauses=0, tokens=TokenCounts(prompt=2000, reused=1500, read=500, output=100),
    drafts=DraftCounts(rounds=10, drafted=30, accepted=21), cache=CacheStatistics(),
)
PATIENCE_S = 10


class Browser:
    """Chromium over its debugging pipe, with one page.

    :ivar faults: exceptions and errors of the page's console.
    """

    def __init__(self, executable: str, folder: str) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()

        def connect() -> None:
            high = os.dup2(theirs_in, 100), os.dup2(theirs_out, 101)
            for number, end in zip((3, 4), high, strict=True):
                os.dup2(end, number)

        self._process = subprocess.Popen(
            [executable, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--disable-background-networking", "--no-proxy-server", "--lang=en",
             f"--user-data-dir={folder}", "--remote-debugging-pipe"],
            preexec_fn=connect, close_fds=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._numbers, self._rest = count(1), b""
        self._events: deque[dict[str, Any]] = deque()
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call(
            "Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            self.call(f"{domain}.enable")
        self.faults: list[str] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Run a command of the DevTools protocol."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._note(answer)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, expression: str) -> Any:
        """What JavaScript gives for an expression."""
        found = self.call("Runtime.evaluate", expression=f"({expression})", returnByValue=True,
                          awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression: str) -> Any:
        """The same, as soon as it is true."""
        end = time.monotonic() + PATIENCE_S
        while not (found := self.value(expression)):
            assert time.monotonic() < end, (expression, self.value("document.body.innerText"))
            time.sleep(0.02)
        return found

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str, modifiers: int = 0) -> None:
        more = {"text": "\r", "windowsVirtualKeyCode": 13} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      modifiers=modifiers, **(more if kind == "keyDown" else {}))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select([self._in], [], [], PATIENCE_S)
            data = os.read(self._in, 1 << 16) if ready else b""
            assert data, "the browser is silent"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.faults.append(params["exceptionDetails"]["exception"]["description"])
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.faults.append(params["entry"]["text"])


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    if not (executable := os.environ.get("CHROMIUM")):
        pytest.skip("CHROMIUM does not name the command")
    browser = Browser(executable, str(tmp_path_factory.mktemp("chromium")))
    yield browser
    browser.close()


@pytest.fixture
def server(serve):
    return serve(*ROUTES)


@pytest.fixture
def browser(chromium, server):
    """It shows the page of `server`; at the end nothing must have gone wrong in it."""
    chromium.open(server.url)
    chromium.faults.clear()
    yield chromium
    assert chromium.faults == []


def say(browser, text):
    browser.value("ask.focus()")
    browser.type(text)
    browser.press("Enter")


def answered(browser, number=1):
    browser.wait(f"log.querySelectorAll('.answer[aria-busy=false]').length === {number}")
    return browser.value("[...log.querySelectorAll('.answer')].at(-1).innerText")


def test_an_answer_streams_with_its_reasoning_folded(server, browser, kit):
    server.engine.script = kit.reply(
        ("reasoning", "Let me "), ("reasoning", "see."), "It is **for", "ty**-", 0.5, "two.",
        cached=3)
    say(browser, "What is it?")
    browser.wait("log.querySelector('strong')?.textContent === 'forty'")
    assert browser.value("log.querySelector('.answer').ariaBusy") == "true"
    assert "It is forty-two." in answered(browser)
    assert browser.value("log.querySelector('details').open") is False
    assert browser.value("log.querySelector('details div').textContent") == "Let me see."
    assert browser.value("log.querySelector('summary').textContent").startswith("Thought for ")
    note = browser.value("log.querySelector('.foot span').textContent")
    assert note.startswith("5 tokens, ") and "3 of " in note
    assert browser.value("document.activeElement.id") == "ask"


def test_a_conversation_goes_on(server, browser, kit):
    server.engine.script = [kit.reply(("reasoning", "hm"), "First."), kit.reply("Second.")]
    say(browser, "One?")
    answered(browser)
    say(browser, "Two?")
    answered(browser, 2)
    text = server.engine.requests[1].prompt.text
    places = [text.index(each) for each in ("One?", "hm", "First.", "Two?")]
    assert places == sorted(places)
    browser.value("$('fresh').click()")
    server.engine.script = kit.reply("Third.")
    say(browser, "Three?")
    assert "Third." in answered(browser)
    assert "One?" not in server.engine.requests[2].prompt.text


def test_another_answer_takes_the_place_of_the_last(server, browser, kit):
    server.engine.script = [kit.reply("First."), kit.reply("Second.")]
    say(browser, "One?")
    answered(browser)
    browser.value("log.querySelector('.again').click()")
    browser.wait("log.innerText.includes('Second.')")
    assert "First." not in answered(browser)
    first, second = (each.prompt.text for each in server.engine.requests)
    assert first == second


def test_lines_are_broken_with_shift(server, browser, kit):
    browser.value("ask.focus()")
    browser.type("one")
    browser.press("Enter", modifiers=8)
    browser.type("two")
    browser.press("Enter")
    answered(browser)
    assert "one\ntwo" in server.engine.requests[0].prompt.text


@pytest.mark.parametrize("how", ["$('stop').click()", None])
def test_an_answer_is_stopped(server, browser, kit, how):
    server.engine.script = [kit.reply("Some", 30.0, "more"), kit.reply("Next.")]
    say(browser, "Go on")
    browser.wait("log.innerText.includes('Some')")
    assert browser.value("$('send').hidden && !$('stop').hidden")
    browser.value(how) if how else browser.press("Escape")
    assert "stopped" in answered(browser)
    end = time.monotonic() + 5
    while not server.engine.cancelled and time.monotonic() < end:
        time.sleep(0.02)
    assert server.engine.cancelled == [1]
    say(browser, "And now?")
    assert "Next." in answered(browser, 2)
    assert "Some" in server.engine.requests[1].prompt.text


def test_a_new_chat_leaves_the_answer_that_comes(server, browser, kit):
    server.engine.script = [kit.reply("Old", 30.0), kit.reply("New.")]
    say(browser, "Go on")
    browser.wait("log.innerText.includes('Old')")
    browser.value("$('fresh').click()")
    say(browser, "Hello")
    assert "New." in answered(browser)
    assert "Old" not in browser.value("log.innerText")


def test_how_far_a_prompt_is_read_is_shown(server, browser, kit):
    server.engine.script = lambda request: [
        *list(kit.reply()(request))[:2], 0.5, *kit.reply("Read.")(request)]
    say(browser, "Long")
    browser.wait("/reading \\d+ of \\d+ tokens/.test(log.innerText)")
    assert "reading" not in answered(browser)


def test_what_a_model_says_is_no_html(server, browser, kit):
    evil = ("<img src=x onerror=alert(1)>", "`<b>code</b>`", "[x](javascript:alert(1))",
            "```\n<script>1</script>\n```")
    server.engine.script = kit.reply(("reasoning", "<i>hm</i>"), "\n\n".join(evil))
    say(browser, "<u>me</u>")
    answered(browser)
    assert browser.value("log.querySelectorAll('img, b, i, u, a, script').length") == 0
    shown = browser.value("log.textContent")
    assert "<img src=x onerror=alert(1)>" in shown and "<script>1</script>" in shown
    assert "<u>me</u>" in shown and "<i>hm</i>" in shown


def test_failures_are_told(server, browser, kit):
    server.engine.refusal = CapacityError("too many requests", why="2 of 2")
    say(browser, "Hello")
    answered(browser)
    assert browser.value("log.querySelector('[role=alert]').innerText") == (
        "too many requests: 2 of 2")
    server.engine.refusal = None
    server.engine.script = kit.reply("Hel", 0.1, reason="error", cause=CapacityError("no room"))
    browser.value("log.querySelector('.again').click()")
    browser.wait("log.innerText.includes('no room')")
    assert "Hel" in answered(browser)
    browser.faults.clear()  # the console names the status


def test_an_api_key_is_asked_for_and_kept(serve, chromium, kit):
    server = serve(*ROUTES, app=kit.AppOptions(api_keys=("secret",)))
    chromium.open(server.url)
    chromium.wait("$('state').innerText === 'needs an API key' && $('settings').open")
    chromium.value("$('key').focus()")
    chromium.type("secret")
    chromium.press("Enter")
    chromium.wait("$('state').innerText === 'ok'")
    say(chromium, "Hello")
    assert "Hello" in answered(chromium)
    chromium.open(f"{server.url}/?again")
    chromium.wait("$('state').innerText === 'ok'")
    chromium.faults.clear()


def test_settings_are_sent(server, browser, kit):
    for name, value in (("system", "Be brief."), ("temperature", "0.5"), ("most", "7"),
                        ("effort", "none")):
        browser.value(f"$('{name}').value = '{value}'")
    say(browser, "Hello")
    answered(browser)
    [request] = server.engine.requests
    assert (request.max_tokens, request.sampling.temperature) == (7, 0.5)
    assert "Be brief." in request.prompt.text and not request.prompt.reasoning_open


def test_the_engine_is_shown_live(server, browser):
    browser.value("performance.now = () => 0, samples = [], 1")
    server.engine.last_status = STATUS
    browser.wait("$('requests').innerText === '3 of 4 running (1 reading), 5 waiting'")
    assert browser.value("$('pool').innerText") == (
        "1,000 pages of requests, 2,000 kept, 1,000 free; 4.2 GB")
    assert browser.value("$('pool-meter').value") == 0.75
    assert browser.value("$('host').innerText") == "105 MB of 210 MB"
    assert browser.value("$('reuse').innerText") == "75 % of 2,000 tokens"
    assert browser.value("$('drafts').innerText") == "70 % accepted, 3.10 tokens a round"
    assert browser.value("$('model').innerText") == "tiny · 4,096 tokens"
    link, status = server.engine, server.engine.status
    link.status = lambda: status() | {"heard_s": -2.0}
    link.last_status = evolve(STATUS, tokens=TokenCounts(2000, 1500, 700, 0, 140))
    browser.wait("$('speed').innerText === '20 tok/s written, 100 read'")
    assert browser.value("$('curve').getAttribute('points').split(' ').length") >= 2
    link.last_status = evolve(STATUS, tokens=TokenCounts(10, 0, 10, 0, 1))  # another engine
    browser.wait("$('speed').innerText === '0 tok/s written, 0 read'")


def test_a_state_and_a_lost_server_are_shown(server, browser):
    browser.wait("$('state').innerText === 'ok'")
    server.engine.state = "restarting"
    browser.wait("$('state').innerText === 'restarting' && !$('state').className")
    browser.value("fetch = () => Promise.reject(new TypeError('lost')), 1")
    browser.wait("$('state').innerText === 'no connection'")


@pytest.mark.parametrize(("text", "html"), [
    ("a *b* **c *d*** `e*f*`", "<p>a <em>b</em> <strong>c <em>d</em></strong> "
                               "<code>e*f*</code></p>"),
    ("# A\n## B\ntext\nmore", "<h3>A</h3><h4>B</h4><p>text\nmore</p>"),
    ("- a\n- b\n  - c\n- d", "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>"),
    ("3. a\n4. b\n   more", '<ol start="3"><li>a</li><li>b\nmore</li></ol>'),
    ("```py\nx = '*a*'\n\n# b\n```\nend", "<pre><code>x = '*a*'\n\n# b</code></pre><p>end</p>"),
    ("```\nopen", "<pre><code>open</code></pre>"),
    ("| a | b |\n|---|:-:|\n| 1 | *2* |", "<table><tbody><tr><th>a</th><th>b</th></tr><tr><td>1"
                                          "</td><td><em>2</em></td></tr></tbody></table>"),
    ("> a\n> - b", "<blockquote><p>a</p><ul><li>b</li></ul></blockquote>"),
    ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
    ("2 * 3 * 4, a_b_c, x | y", "<p>2 * 3 * 4, a_b_c, x | y</p>"),
    ("``a`b`` and `", "<p><code>a`b</code> and `</p>"),
    ("[x](https://a.example/b) https://c.example", '<p><a href="https://a.example/b" '
     'rel="noopener noreferrer" target="_blank">x</a> <a href="https://c.example" '
     'rel="noopener noreferrer" target="_blank">https://c.example</a></p>'),
])
def test_markdown(browser, text, html):
    """In one piece, and a character at a time."""
    assert browser.value(f"paint(make('div'), {json.dumps(text)}).innerHTML") == html
    assert browser.value(f"""(() => {{
        const node = make('div'), text = {json.dumps(text)};
        for (let at = 1; at <= text.length; at++) paint(node, text.slice(0, at));
        return node.innerHTML;
    }})()""") == html


@pytest.mark.parametrize("piece", ["`", "``a", "*", "**a", "[", "[a](", "|-", "> ", "- ", "a\n"])
def test_no_text_takes_long_to_show(browser, piece):
    text = json.dumps(piece * (100_000 // len(piece)))
    took_ms = browser.value(f"""(() => {{
        const begun = performance.now();
        paint(make('div'), {text});
        return performance.now() - begun;
    }})()""")
    assert took_ms < 2000


def test_everything_that_takes_focus_has_a_name(browser):
    browser.value("$('settings').open = true, 1")
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    for node in nodes:
        facts = {each["name"]: each["value"].get("value") for each in node.get("properties", ())}
        if facts.get("focusable") and node["role"]["value"] != "RootWebArea":
            assert node["name"]["value"], node


@pytest.mark.parametrize("width", [360, 1400])
def test_the_panel_is_folded_where_there_is_little_room(server, browser, width):
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=700,
                 deviceScaleFactor=1, mobile=False)
    browser.open(f"{server.url}/?narrow")
    assert browser.value("$('panel').hidden") == (width == 360)
    browser.value("$('fold').click()")
    assert browser.value("$('fold').ariaExpanded") == str(width == 360).lower()
    assert browser.value("$('panel').hidden") == (width != 360)
    browser.call("Emulation.clearDeviceMetricsOverride")


@pytest.mark.parametrize("width", [360, 800, 1400])
def test_nothing_is_wider_than_the_window(server, browser, kit, width):
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=700,
                 deviceScaleFactor=1, mobile=False)
    server.engine.script = kit.reply("```\n" + "x" * 500 + "\n```\n\n" + "y" * 500)
    say(browser, "z" * 500)
    answered(browser)
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value("document.documentElement.scrollHeight") <= 700
    browser.call("Emulation.clearDeviceMetricsOverride")
