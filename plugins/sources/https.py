"""Weights behind a URL: one .safetensors or .gguf file, or a directory that has a manifest.json.

`https://` is taken from anywhere. `http://` is taken from this machine, and from elsewhere where the URL ends with
`#sha256=DIGEST` of the GGUF file or the manifest.json, so that nobody on the way can change what is served. The same
goes for where redirects lead, and none leads from https to http.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import SplitResult, quote, unquote, urlsplit

from tickertape.plugins import FileEntry, Manifest, Origin, RangedSource, StartupError, hookimpl
from tickertape.plugins.sources.model_files import PICKLES, is_weights_file

__all__ = ["API", "HttpsSource", "register_weight_sources"]

API = (1, 0)

_FRAGMENT: Final = re.compile(r"^sha256=([0-9a-f]{64})$")


class HttpsSource:
    """`stall_s`: a server that is silent for so long has failed."""

    name = "https"
    schemes = ("https", "http")

    def __init__(self, stall_s: float = 30.0) -> None:
        self._stall_s = stall_s

    def prepare(self) -> None:
        import tickertape.plugins.sources.http_origin
        import tickertape.plugins.sources.https_listing  # noqa: F401

    def pinned(self, uri: str) -> bool:
        """When the URL ends with the digest of all there is: of a GGUF file, or of the listing of a directory."""
        try:
            address = Address.read(uri)
        except StartupError:
            return False
        return address.is_checked

    def resolve(self, uri: str) -> Manifest:
        """Asks for a byte of each file, or for the manifest.json. Raises StartupError: UnsupportedSource, PickleOnly,
        NoManifest, BadManifest, CorruptDownload, NoRanges, Unauthorized, Forbidden, NotFound; OriginError."""
        from tickertape.plugins.sources.http_client import HttpClient
        from tickertape.plugins.sources.https_listing import list_files

        address = Address.read(uri)
        client = HttpClient(self._stall_s, address.may_be_plain)
        try:
            revision, entries = list_files(client, address)
        finally:
            client.close()
        return Manifest(uri, revision, entries)

    def open(self, manifest: Manifest) -> Origin:
        from tickertape.plugins.sources.http_client import HttpClient
        from tickertape.plugins.sources.http_origin import HttpOrigin, Place

        address = Address.read(manifest.uri)

        def find(entry: FileEntry) -> Place:
            return Place(address.url(entry.path), address.private)

        return HttpOrigin(HttpClient(self._stall_s, address.may_be_plain), find)


class Address:
    """A URL of a model, taken apart: where its files lie, which one is named ("" when none is), and its digest."""

    def __init__(self, parts: SplitResult, sha256: str | None) -> None:
        self._parts = parts
        self.sha256 = sha256
        folder, _, last = parts.path.rpartition("/")
        self.file = unquote(last) if is_weights_file(last) else ""
        self._folder = folder if self.file else parts.path.rstrip("/")

    @classmethod
    def read(cls, uri: str) -> Address:
        """Raises StartupError: UnsupportedSource, PickleOnly."""
        try:
            parts = urlsplit(uri)
        except ValueError:  # its text may hold the password
            raise StartupError("the model's URL has an address that cannot be", code="UnsupportedSource") from None
        where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        try:
            port_is_one = parts.port is None or parts.port > 0
        except ValueError:
            port_is_one = False
        if not parts.hostname or not port_is_one:
            raise StartupError(f"{where}: names no host", code="UnsupportedSource")
        digest = _FRAGMENT.match(parts.fragment)
        if parts.fragment and digest is None:
            raise StartupError(f"{where}: what follows # is not sha256= and 64 hex digits", code="UnsupportedSource")
        address = cls(parts, digest[1] if digest is not None else None)
        if address.file.endswith(PICKLES):
            raise StartupError(f"{where}: pickled weights are never read; convert to safetensors", code="PickleOnly")
        if parts.scheme == "http" and not address.may_be_plain(parts.hostname):
            raise StartupError(
                f"{where}: http:// is for this machine; use https://, or name the #sha256= of a GGUF file or of a "
                "directory's manifest.json",
                code="UnsupportedSource",
            )
        return address

    @property
    def is_checked(self) -> bool:
        """Whether the URL has the digest of all there is."""
        return self.sha256 is not None and not self.file.endswith(".safetensors")

    def may_be_plain(self, host: str) -> bool:
        """Whether files may come from there without TLS, by this URL or by a redirect."""
        return self.is_checked or _is_here(host)

    def url(self, path: str) -> str:
        """Where the file `path` of the model lies. What the URL carries as a query goes along: it may be a token."""
        netloc = self._parts.netloc.rpartition("@")[2]
        query = f"?{self._parts.query}" if self._parts.query else ""
        return f"{self._parts.scheme}://{netloc}{self._folder}/{quote(path)}{query}"

    @property
    def private(self) -> Mapping[str, str]:
        """The headers that only this host may see."""
        if self._parts.username is None:
            return {}
        login = f"{unquote(self._parts.username)}:{unquote(self._parts.password or '')}"
        return {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@hookimpl
def register_weight_sources(register: Callable[[RangedSource], None]) -> None:
    register(HttpsSource())
