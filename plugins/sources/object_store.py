"""Models in object stores: `s3://`, `gs://` and `az://BUCKET/PREFIX[/FILE]`, through obstore (extra "objectstore").

obstore reads credentials, regions and endpoints from the environment by itself; docs/weights.md says which names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tickertape.plugins import Manifest, Origin, RangedSource, StartupError, hookimpl

if TYPE_CHECKING:
    from tickertape.plugins.sources.bucket import Bucket

__all__ = ["API", "ObjectStoreSource", "register_weight_sources"]

API = (1, 0)


class ObjectStoreSource:
    """`config` goes to obstore's stores as it is, over what they find in the environment. `stall_s`: a store that is
    silent for so long has failed."""

    name = "object_store"
    schemes = ("s3", "gs", "az")

    def __init__(self, config: Mapping[str, Any] | None = None, stall_s: float = 30.0) -> None:
        self._config = dict(config or {})
        self._stall_s = stall_s

    def prepare(self) -> None:
        if find_spec("obstore") is not None:
            import tickertape.plugins.sources.bucket  # noqa: F401

    def pinned(self, uri: str) -> bool:
        """Never: what lies under a prefix may be replaced."""
        return False

    def resolve(self, uri: str) -> Manifest:
        """Lists what lies under the prefix. Raises StartupError: UnsupportedSource, MissingDependency, NotFound,
        Unauthorized, Forbidden, BadManifest, and what `choose_files` raises; OriginBusy, OriginError."""
        return self._bucket(uri).resolve()

    def open(self, manifest: Manifest) -> Origin:
        return self._bucket(manifest.uri).origin()

    def _bucket(self, uri: str) -> Bucket:
        if find_spec("obstore") is None:
            raise StartupError(f"{uri}: needs obstore; install tickertape[objectstore]", code="MissingDependency")
        from tickertape.plugins.sources.bucket import Bucket

        return Bucket(uri, self._config, self._stall_s)


@hookimpl
def register_weight_sources(register: Callable[[RangedSource], None]) -> None:
    register(ObjectStoreSource())
