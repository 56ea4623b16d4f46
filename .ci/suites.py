"""Runs the heavy suites of suites.toml whose paths changed. Standard library only."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent


def changed() -> list[str]:
    """Paths changed since CI_BASE, or since the last commit older than six hours. A history without such a commit has
    nothing to compare with: no suite is added, and CI_ALL=1 is how to run them."""
    base = os.environ.get("CI_BASE") or git("rev-list", "-1", "--before=6 hours ago", "HEAD").strip()
    return git("diff", "--name-only", base).split() if base else []


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=HERE, capture_output=True, text=True, check=True).stdout


def passes(name: str, cap_s: float, tries: int) -> bool:
    for attempt in range(1, tries + 1):
        print(f"suite {name}, at most {cap_s} s, try {attempt} of {tries}", flush=True)
        try:
            subprocess.run(["make", f"test-{name}"], cwd=HERE.parent, check=True, timeout=cap_s)
            return True
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(f"suite {name}: {error}", file=sys.stderr)
    return False


def main() -> int:
    suites = tomllib.loads((HERE / "suites.toml").read_text()).get("suite", {})
    everything = os.environ.get("CI_ALL") == "1"
    paths = [] if everything else changed()
    failed = []
    for name, suite in suites.items():
        if not everything and not any(path.startswith(tuple(suite["paths"])) for path in paths):
            continue
        if not passes(name, suite["cap_s"], suite.get("tries", 1)):
            failed.append(name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
