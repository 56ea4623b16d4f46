"""The rooms are where the design says, and nobody can import them by the wrong name."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("core", "plugins", "api", "weights")


def sources() -> list[Path]:
    folders = [*ROOMS, "tickertape", "tests", "benchmarks", "examples"]
    return [p for folder in folders for p in (ROOT / folder).rglob("*.py") if "_pb2" not in p.name]


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_are_relative_links(room: str) -> None:
    link = ROOT / "tickertape" / room
    assert link.is_symlink()
    assert str(link.readlink()) == f"../{room}"


@pytest.mark.parametrize("room", ROOMS)
def test_a_bare_import_of_a_room_fails(room: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {room}"], cwd=tmp_path, capture_output=True, text=True, timeout=30
    )
    assert "ModuleNotFoundError" in done.stderr


def test_the_front_door_is_guarded_whole() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    guarded = next(c["forbidden_modules"] for c in contracts if c["name"] == "nobody imports the front door")
    door = {path.stem for path in (ROOT / "tickertape").glob("*.py") if path.stem != "__init__"}
    door |= {path.parent.name for path in (ROOT / "tickertape").glob("*/__init__.py") if not path.parent.is_symlink()}
    assert set(guarded) == {f"tickertape.{name}" for name in door}


def test_files_are_small_rooms() -> None:
    long = {str(path.relative_to(ROOT)): n for path in sources() if (n := len(path.read_text().splitlines())) > 400}
    assert not {name for name in long if not name.startswith("tests/")}


def test_nothing_below_the_front_door_reads_the_environment() -> None:
    readers = [
        str(path.relative_to(ROOT))
        for path in sources()
        if path.parts[len(ROOT.parts)] in ROOMS
        and ("os.environ" in path.read_text() or "os.getenv" in path.read_text())
    ]
    assert readers == []
