"""Runs the heavy suites of suites.toml whose paths changed. Standard library only."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent


def changed() -> list[str] | None:
    """Paths changed since CI_BASE, or since the last commit older than six hours; None when there is no such commit."""
    base = os.environ.get("CI_BASE") or git("rev-list", "-1", "--before=6 hours ago", "HEAD").strip()
    return git("diff", "--name-only", base).split() if base else None


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=HERE, capture_output=True, text=True, check=True).stdout


def main() -> int:
    suites = tomllib.loads((HERE / "suites.toml").read_text()).get("suite", {})
    paths = None if os.environ.get("CI_ALL") == "1" else changed()
    failed = []
    for name, suite in suites.items():
        if paths is not None and not any(path.startswith(tuple(suite["paths"])) for path in paths):
            continue
        print(f"suite {name}, at most {suite['cap_s']} s", flush=True)
        try:
            subprocess.run(["make", f"test-{name}"], cwd=HERE.parent, check=True, timeout=suite["cap_s"])
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(f"suite {name}: {error}", file=sys.stderr)
            failed.append(name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
