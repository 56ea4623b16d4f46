"""Clients in environments of their own: grpc-js on node, and tritonclient. Their scripts stand beside this file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ENVIRONMENT = Path(sys.prefix)  # install.sh puts theirs into the same directory


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "case",
    [
        "whole_and_streamed", "tools", "cancel", "deadline", "resume", "abort", "errors", "health", "reflection_v1",
        "reflection_v1alpha",
    ],
)  # fmt: skip
def test_node(address: str, protos: Path, case: str) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    if not (ENVIRONMENT / "node_modules" / "@grpc" / "grpc-js").is_dir():
        pytest.skip("the packages for node are not installed")
    # node looks for packages from where the script lies.
    placed = shutil.copy(HERE / "client.mjs", ENVIRONMENT / "client.mjs")
    run(node, str(placed), case, address, os.environ["TICKERTAPE_KEY"], str(protos))


def test_tritonclient(address: str) -> None:
    run(str(ENVIRONMENT / "triton" / "bin" / "python"), str(HERE / "triton.py"), address, os.environ["TICKERTAPE_KEY"])
