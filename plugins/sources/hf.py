"""Models of the Hugging Face hub: `hf://ORG/NAME[@REVISION][/FILE.gguf]`; a bare ORG/NAME is one too.

`huggingface_hub` says what a revision is and which token counts (HF_ENDPOINT, HF_TOKEN, a login); the bytes come by
ranged requests of our own, which can be resumed and never carry the token to another host.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

from msgspec import Struct

from tickertape.plugins import Manifest, Origin, RangedSource, StartupError, hookimpl

__all__ = ["API", "HubModel", "HubSource", "register_weight_sources"]

API = (1, 0)

_PART: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_-])?"
_URI: Final = re.compile(
    rf"^hf://(?P<repo>{_PART}/{_PART})(?:@(?P<revision>refs/(?:pr|convert)/[^/@]+|[^/@]+))?(?:/(?P<file>[^?#]+))?$"
)
_COMMIT: Final = re.compile(r"^[0-9a-f]{40}$")


class HubModel(Struct, frozen=True):
    """An hf:// URI, taken apart. `revision` None: the default branch; `file` None: none is named."""

    repo: str
    revision: str | None
    file: str | None

    @classmethod
    def read(cls, uri: str) -> HubModel:
        """A revision with other slashes than refs/pr/N has them written as %2F. Raises StartupError,
        UnsupportedSource."""
        match = _URI.match(uri.removesuffix("/"))
        if match is None:
            raise StartupError(f"{uri}: expected hf://ORG/NAME[@REVISION][/FILE.gguf]", code="UnsupportedSource")
        revision, file = match["revision"], match["file"]
        return cls(match["repo"], unquote(revision) if revision else None, unquote(file) if file else None)


class HubSource:
    """`endpoint` and `token` stand in for what huggingface_hub finds in its environment. `stall_s`: a hub that is
    silent for so long has failed."""

    name = "hf"
    schemes = ("hf",)

    def __init__(self, endpoint: str | None = None, token: str | None = None, stall_s: float = 30.0) -> None:
        self._endpoint = endpoint
        self._token = token
        self._stall_s = stall_s

    def pinned(self, uri: str) -> bool:
        """When the revision is a commit, in full."""
        try:
            return _COMMIT.match(HubModel.read(uri).revision or "") is not None
        except StartupError:
            return False

    def prepare(self) -> None:
        import tickertape.plugins.sources.hub  # noqa: F401

    def resolve(self, uri: str) -> Manifest:
        """One request. Raises StartupError: UnsupportedSource, NotFound, RevisionNotFound, Gated, Unauthorized,
        Forbidden, and what `choose_files` raises; OriginBusy, OriginError (code Offline when HF_HUB_OFFLINE is set)."""
        from tickertape.plugins.sources.hub import Hub

        model = HubModel.read(uri)
        commit, files = Hub(self._endpoint, self._token, self._stall_s).list_files(model)
        return Manifest(uri, commit, files)

    def open(self, manifest: Manifest) -> Origin:
        from tickertape.plugins.sources.hub import Hub

        hub = Hub(self._endpoint, self._token, self._stall_s)
        return hub.origin(HubModel.read(manifest.uri), manifest.revision)


@hookimpl
def register_weight_sources(register: Callable[[RangedSource], None]) -> None:
    register(HubSource())
