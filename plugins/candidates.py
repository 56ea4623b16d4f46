"""Where plugins come from: entry points of installed distributions, and single files of a directory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Final

from tickertape.core.errors import PluginError, StartupError

__all__ = ["Candidate", "files_of", "installed"]

HOST: Final = "tickertape"


@dataclass(frozen=True)
class Candidate:
    """A plugin that was found and not yet imported. `distribution` and `version` are empty for a single file."""

    name: str
    distribution: str
    version: str
    load: Callable[[], object]

    @property
    def builtin(self) -> bool:
        return self.distribution == HOST


def installed(found: Iterable[EntryPoint]) -> list[Candidate]:
    """Built-in plugins first, so that no stranger takes a built-in name, then by name."""
    candidates = [
        Candidate(
            name=point.name,
            distribution=point.dist.name if point.dist else "",
            version=point.dist.version if point.dist else "",
            load=point.load,
        )
        for point in found
    ]
    return sorted(candidates, key=lambda c: (not c.builtin, c.name, c.distribution))


def files_of(directory: Path) -> list[Candidate]:
    """One plugin per `*.py` file that does not start with an underscore, by name."""
    if not directory.is_dir():
        raise StartupError(f"no such plugins directory: {directory}", code="PathNotFound")
    paths = sorted(path for path in directory.glob("*.py") if not path.name.startswith("_"))
    return [Candidate(path.stem, "", "", _Importer(path)) for path in paths]


@dataclass(frozen=True)
class _Importer:
    """Imports a file under a name of its own, so that it can neither hide nor be a module of that name. The plugin
    names its factory with `f"{__name__}:make"`."""

    path: Path

    def __call__(self) -> object:
        name = f"{HOST}_plugin_{self.path.stem}"
        spec = spec_from_file_location(name, self.path)
        if spec is None or spec.loader is None:
            raise PluginError(f"{self.path.name} is not a Python file")
        module = module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module
