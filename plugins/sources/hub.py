"""The hub behind hf:// URIs: its listing of a commit, where its files are, and what its refusals say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NoReturn

import httpx2
import msgspec
from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils import build_hf_headers, parse_ratelimit_headers  # type: ignore[attr-defined]

from tickertape import __version__
from tickertape.plugins import FileEntry, OriginBusy, OriginError, StartupError
from tickertape.plugins.sources.hf import HubModel
from tickertape.plugins.sources.http_answers import refusal, retry_after_s
from tickertape.plugins.sources.http_client import HttpClient
from tickertape.plugins.sources.http_origin import HttpOrigin, Place
from tickertape.plugins.sources.model_files import choose_files

__all__ = ["Hub"]

_LIBRARY: Final = "tickertape"
_BAD_TOKEN: Final = "invalid credentials"  # in X-Error-Message
_DISABLED: Final = "access to this resource is disabled"

# Else it asks the hub for a list of coding agents, and says in User-Agent which of them started us, and which torch.
constants.HF_HUB_DISABLE_TELEMETRY = True


class Hub:
    """A hub and who asks it. `endpoint` and `token` None: as huggingface_hub finds them."""

    def __init__(self, endpoint: str | None, token: str | None, stall_s: float) -> None:
        self._api = HfApi(endpoint=endpoint, token=token, library_name=_LIBRARY, library_version=__version__)
        self._headers = build_hf_headers(token=token, library_name=_LIBRARY, library_version=__version__)
        self._stall_s = stall_s

    def list_files(self, model: HubModel) -> tuple[str, tuple[FileEntry, ...]]:
        """The commit and the files that the model needs, each with its digest. Asks once: model_info has no retries.
        Raises what `HubSource.resolve` raises."""
        try:
            info = self._api.model_info(model.repo, revision=model.revision, files_metadata=True, timeout=self._stall_s)
        except HfHubHTTPError as error:
            raise self._refusal(model, error.response.status_code, error.response.headers, model.repo) from None
        except HFValidationError:
            raise StartupError(f"hf://{model.repo}: not the name of a repository", code="UnsupportedSource") from None
        except (OfflineModeIsEnabled, httpx2.HTTPError, OSError, ValueError, TypeError, KeyError) as error:
            _raise_unreachable(self._api.endpoint, error)
        if info.sha is None or info.siblings is None:
            raise OriginError(f"{self._api.endpoint}: does not say which files hf://{model.repo} has")
        try:
            siblings = {sibling.rfilename: sibling for sibling in info.siblings}
            chosen = choose_files(siblings, f"hf://{model.repo}", model.file)
            return info.sha, tuple(_entry(siblings[path]) for path in chosen)
        except (TypeError, msgspec.ValidationError) as error:
            _raise_unreachable(self._api.endpoint, error)

    def origin(self, model: HubModel, commit: str) -> HttpOrigin:
        """The files of a commit."""

        def find(entry: FileEntry) -> Place:
            return Place(
                hf_hub_url(model.repo, entry.path, revision=commit, endpoint=self._api.endpoint), self._headers
            )

        def refused(status: int, headers: Mapping[str, str], what: str) -> StartupError:
            return self._refusal(model, status, headers, what)

        return HttpOrigin(HttpClient(self._stall_s), find, refused)

    def _refusal(self, model: HubModel, status: int, headers: Mapping[str, str], what: str) -> StartupError:
        where, code = f"hf://{model.repo}", headers.get("X-Error-Code", "")
        message = headers.get("X-Error-Message", "").lower()
        anonymous = "authorization" not in self._headers
        if code == "GatedRepo":
            who = "nobody is logged in: set HF_TOKEN" if anonymous else "the token's owner has not been granted it"
            return StartupError(
                f"{where}: access is gated, and {who} (ask at {self._api.endpoint}/{model.repo})", code="Gated"
            )
        if code == "RevisionNotFound":
            return StartupError(f"{where}: has no revision {model.revision!r}", code="RevisionNotFound")
        if code == "EntryNotFound":
            return StartupError(f"{what}: not found", code="NotFound")
        if status == 401 and (_BAD_TOKEN in message or (code != "RepoNotFound" and not anonymous)):
            return StartupError(f"{where}: the hub does not accept the token it was given", code="Unauthorized")
        if status == 404 or code == "RepoNotFound" or status == 401:
            hint = "; if it is private, set HF_TOKEN" if anonymous else ", or the token may not see it"
            return StartupError(f"{where}: not found on {self._api.endpoint}{hint}", code="NotFound")
        if _DISABLED in message:
            return StartupError(f"{where}: the hub has disabled it", code="Forbidden")
        if status == 403:
            return StartupError(f"{where}: the token may not read it", code="Forbidden")
        if status == 429 and retry_after_s(headers) is None:
            limit = parse_ratelimit_headers(headers)
            if limit is not None and limit.remaining == 0:
                after_s = float(limit.reset_in_seconds)
                return OriginBusy(f"{where}: the hub says too many requests (429)", retry_after_s=after_s)
        return refusal(status, headers, where)


def _entry(sibling: RepoSibling) -> FileEntry:
    """Raises ValidationError: huggingface_hub takes what the hub says as it is."""
    if sibling.lfs is not None:
        entry = FileEntry(sibling.rfilename, sibling.lfs.size, sibling.lfs.sha256)
    else:
        entry = FileEntry(sibling.rfilename, sibling.size, git_sha1=sibling.blob_id)
    return msgspec.convert(msgspec.to_builtins(entry), FileEntry)


def _raise_unreachable(endpoint: str, error: Exception) -> NoReturn:
    if isinstance(error, OfflineModeIsEnabled):
        raise OriginError("HF_HUB_OFFLINE is set, so the hub is not asked", code="Offline") from None
    if isinstance(error, httpx2.TimeoutException):
        raise OriginError(f"{endpoint}: does not answer") from None
    if isinstance(error, httpx2.HTTPError | OSError):
        raise OriginError(f"{endpoint}: cannot be reached ({type(error).__name__})") from None
    raise OriginError(f"{endpoint}: its answer makes no sense ({type(error).__name__})") from None
