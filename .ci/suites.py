"""Runs the heavy suites of suites.toml whose paths changed. Standard library only."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent


def changed() -> list[str] | None:
    """Paths changed by the last commit and the working tree; None when git cannot say."""
    done = subprocess.run(["git", "diff", "--name-only", "HEAD~1"], cwd=HERE, capture_output=True, text=True)
    return done.stdout.split() if done.returncode == 0 else None


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
