"""Clients that run on node: the openai SDK, and a page in headless Chromium. Their scripts stand beside this file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asked import GREETING, Endpoint

PACKAGES = Path(sys.prefix) / "node_modules"  # install.sh puts them into the same directory
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def run(script: str, *arguments: str, package: str, **environment: str) -> str:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    if not (PACKAGES / package).is_dir():
        pytest.skip(f"{package} for node is not installed")
    # node looks for packages from where the script lies.
    placed = shutil.copy(Path(__file__).parent / script, PACKAGES.parent / script)
    done = subprocess.run(
        [node, str(placed), *arguments],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "case", ["whole_and_streamed", "tools", "structured_output", "timeouts", "leaves_a_stream", "errors"]
)
def test_openai(server: Endpoint, case: str) -> None:
    run("openai.mjs", case, package="openai")


def test_openai_tries_again_after_a_429(busy: Endpoint, crowd: Callable[[], Any], refusals: Callable[[], int]) -> None:
    before = refusals()
    with crowd():
        run("openai.mjs", "retries", package="openai")
    assert refusals() > before


def browse(case: str) -> dict[str, Any]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    seen: dict[str, Any] = json.loads(run("browser.mjs", case, package="playwright-core", CHROMIUM=CHROMIUM))
    return seen


def test_a_page_of_another_origin(server: Endpoint) -> None:
    seen = browse("visit")
    assert seen["models"] == ["tiny"]
    assert seen["request_id"].startswith("req-")
    assert seen["whole"] == seen["greeting"] == GREETING
    assert seen["type"] == "text/event-stream; charset=utf-8"
    assert (seen["text"], seen["last"]) == ("0123456789" * 6, "[DONE]")
    assert seen["arrivals"] > 10  # a busy browser hands several pieces over at once
    assert seen["first_share"] < 0.5  # read as it came, not at the end
    assert (seen["aborted"], seen["timeout"]) == ("AbortError", "TimeoutError")
    assert seen["refused"] == [401, "invalid_api_key"]


def test_a_page_tries_again_after_a_429(busy: Endpoint, crowd: Callable[[], Any], refusals: Callable[[], int]) -> None:
    before = refusals()
    with crowd():
        seen = browse("retries")
    assert seen["text"] == GREETING
    assert seen["tries"] > 1
    assert refusals() > before
