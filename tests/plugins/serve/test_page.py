"""The page as it is served; `page_job` has it in a browser."""

import base64
import hashlib
import re
import shutil
import subprocess

import msgspec
import pytest
from litestar.testing import TestClient

from ninfer_serve.page.routes import Status

ROUTES = ("ninfer_serve.page.routes:routes", "ninfer_serve.anthropic.routes:routes")


@pytest.fixture
def page(make_app):
    with TestClient(make_app(*ROUTES).app) as client:
        return client.get("/")


def content_of(page, tag):
    [content] = re.findall(f"<{tag}>(.*?)</{tag}>", page.text, re.DOTALL)
    return content


def test_it_is_one_small_page(page):
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert len(page.content) < 30_000


def test_its_policy_lets_nothing_else_run(page):
    header = page.headers["content-security-policy"]
    policy = dict(each.split(" ", 1) for each in header.split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for tag in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(content_of(page, tag).encode()).digest()).decode()
        assert policy[f"{tag}-src"] == f"'sha256-{digest}'"
    assert page.headers["x-content-type-options"] == "nosniff"


def test_it_asks_nobody_else_for_anything(page):
    assert not re.search(r"\b(src|action|srcset)=|url\(|@import|\bimport\b", page.text)
    assert set(re.findall(r'href="([^"]*)"', page.text)) == {"data:,"}
    assert set(re.findall(r'fetch\(\s*"([^"]*)"', page.text)) == {
        "v1/chat/completions", "v1/status"}


def test_nothing_becomes_html_or_code(page):
    script = content_of(page, "script")
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script)
    assert not re.search(r"<[^>]*\s(on\w+|style)=", page.text)


def test_its_script_can_be_read(page):
    if not (node := shutil.which("node")):
        pytest.skip("there is no node")
    checked = subprocess.run([node, "--check", "-"], input=content_of(page, "script"), text=True,
                             capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_all_that_the_script_names_is_there_once(page):
    ids = re.findall(r'\bid="([^"]+)"', page.text)
    assert len(ids) == len(set(ids))
    script = content_of(page, "script")
    assert set(re.findall(r'\$\("([^"]+)"\)', script)) <= set(ids)
    labelled = set(re.findall(r'for="([^"]+)"', page.text))
    assert labelled <= set(ids)


def test_the_page_is_open_and_its_figures_are_not(make_app, kit):
    made = make_app(*ROUTES, app=kit.AppOptions(api_keys=("k",)))
    with TestClient(made.app) as client:
        assert client.get("/").status_code == client.head("/").status_code == 200
        assert client.get("/v1/status").status_code == 401
        answer = client.get("/v1/status", headers={"Authorization": "Bearer k"})
    assert answer.status_code == 200


def test_the_status_is_as_described(make_app):
    made = make_app(*ROUTES)
    made.engine.state = "stalled"
    with TestClient(made.app) as client:
        found = client.get("/v1/status").json()
    assert msgspec.to_builtins(msgspec.convert(found, Status)) == found == {
        "state": "stalled", "pending": 0, "restarts": 0, "heard_s": 0.0, "engine": None, "held": [],
        "model": {"name": "tiny", "max_context": 4096, "max_concurrency": 4},
    }
