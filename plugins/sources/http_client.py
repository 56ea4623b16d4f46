"""GET requests of a fetch: kept connections, the proxies of the environment, TLS, redirects that lose no secret."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import certifi
import urllib3
from urllib3 import exceptions as faults

from tickertape.plugins import OriginError, StartupError
from tickertape.plugins.sources.http_answers import shown

__all__ = ["STALL_S", "HttpClient", "origin_of"]

STALL_S: Final = 30.0
_CONNECT_S: Final = 10.0
_MAX_REDIRECTS: Final = 6
_MAX_CONNECTIONS: Final = 64  # kept per host; more are made when more threads ask, and closed after
_MAX_DRAINED_BYTES: Final = 64 << 10
_NONE: Final[Mapping[str, str]] = {}
_PORTS: Final = {"http": 80, "https": 443}


class HttpClient:
    """Asks once: whoever calls decides about trying again. Any number of threads ask at once.

    A server that sends no byte for `stall_s` has failed. The certificates trusted are the system's and certifi's.
    `plain` says of a host whether a redirect without TLS may lead to it; from TLS none may.
    """

    def __init__(self, stall_s: float = STALL_S, plain: Callable[[str], bool] = lambda _: True) -> None:
        self._stall_s = stall_s
        self._plain = plain
        self._timeout = urllib3.Timeout(connect=min(_CONNECT_S, stall_s), read=stall_s)
        self._proxies = getproxies()
        self._managers: dict[tuple[str | None, bool], urllib3.PoolManager] = {}  # by proxy, and whether for TLS
        self._answers: set[urllib3.BaseHTTPResponse] = set()
        self._lock = threading.Lock()
        self._closed = False

    def get(
        self, url: str, headers: Mapping[str, str] = _NONE, private: Mapping[str, str] = _NONE
    ) -> tuple[urllib3.BaseHTTPResponse, str]:
        """The answer, its body still to be read, and the URL that gave it after redirects. `private` headers go to the
        origin (scheme, host, port) of `url` and to no other. Give every answer to `done`.

        Raises OriginError when no answer comes, StartupError for what will not pass: CertificateRejected,
        UnsupportedProxy, UnexpectedAnswer (a redirect that leads nowhere, or to where TLS would be needed).
        """
        home = origin_of(url)
        for _ in range(_MAX_REDIRECTS):
            answer = self._send(url, {**headers, **(private if origin_of(url) == home else {})})
            target = answer.get_redirect_location()
            if not target:
                return answer, url
            self.done(answer, drain=_is_small(answer))
            url = _followed(url, target, self._plain)
        raise StartupError(f"{shown(url)}: redirects again and again", code="UnexpectedAnswer")

    def read(self, answer: urllib3.BaseHTTPResponse, max_bytes: int, what: str) -> bytes:
        """The next bytes of the body, as many as are there; none at its end. Raises OriginError."""
        try:
            return answer.read1(max_bytes, decode_content=False)
        except (faults.HTTPError, OSError, ValueError, AttributeError) as error:
            # The last two come up when `close` takes the connection away under a reader.
            raise self._failure(what, error) from None

    def done(self, answer: urllib3.BaseHTTPResponse, *, drain: bool = False) -> None:
        """Ends with an answer. Its connection is kept if the body was read to its end; `drain` reads what is left."""
        with self._lock:
            self._answers.discard(answer)
        if drain and not self._closed:
            with suppress(faults.HTTPError, OSError):
                answer.drain_conn()
                answer.release_conn()
                return
        answer.close()

    def close(self) -> None:
        """Ends all connections; what other threads read from them raises OriginError. May be called twice."""
        with self._lock:
            self._closed = True
            answers, managers = list(self._answers), list(self._managers.values())
            self._managers.clear()
        for answer in answers:
            with suppress(ValueError, RuntimeError, OSError):  # just ended, or handed back
                answer.shutdown()
        for manager in managers:
            manager.clear()

    def _send(self, url: str, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
        headers = {"User-Agent": "tickertape", "Accept-Encoding": "identity", **headers}
        try:
            answer = self._manager(url).request(
                "GET",
                url,
                headers=headers,
                timeout=self._timeout,
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
        except (faults.HTTPError, OSError, ValueError) as error:
            raise self._failure(shown(url), error) from None  # its text may hold the URL, secrets and all
        with self._lock:
            if not self._closed:
                self._answers.add(answer)
                return answer
        answer.close()
        raise OriginError(f"{shown(url)}: the fetch has ended")

    def _manager(self, url: str) -> urllib3.PoolManager:
        parts = urlsplit(url)
        proxy = self._proxies.get(parts.scheme) or self._proxies.get("all")
        if proxy and proxy_bypass(parts.hostname or ""):
            proxy = None
        with self._lock:
            if self._closed:
                raise OriginError(f"{shown(url)}: the fetch has ended")
            key = proxy, parts.scheme == "https"
            if key not in self._managers:
                self._managers[key] = _manager(*key)
            return self._managers[key]

    def _failure(self, what: str, error: Exception) -> StartupError:
        if self._closed:
            return OriginError(f"{what}: the fetch has ended")
        if isinstance(error, faults.ReadTimeoutError | TimeoutError):
            return OriginError(f"{what}: nothing came for {self._stall_s:g} s")
        if isinstance(error, faults.ConnectTimeoutError | faults.NewConnectionError | faults.NameResolutionError):
            return OriginError(f"{what}: the host cannot be reached")
        if isinstance(error, faults.ProxyError):
            return OriginError(f"{what}: the proxy failed")
        if isinstance(error, faults.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
            return StartupError(f"{what}: the host's certificate is not trusted", code="CertificateRejected")
        return OriginError(f"{what}: the connection broke ({type(error).__name__})")


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port: what a browser calls an origin."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme)


def _followed(url: str, target: str, plain: Callable[[str], bool]) -> str:
    """Where a redirect leads. Raises StartupError."""
    try:
        followed = urljoin(url, target)
        scheme, host, _ = origin_of(followed)
    except ValueError:  # an address or a port that cannot be
        scheme, host = "", ""
    if scheme not in ("https", "http") or not host:
        raise StartupError(f"{shown(url)}: redirects to what is no http address", code="UnexpectedAnswer")
    if scheme == "http" and urlsplit(url).scheme == "https":
        raise StartupError(f"{shown(url)}: redirects away from https", code="UnexpectedAnswer")
    if scheme == "http" and not plain(host):
        raise StartupError(f"{shown(url)}: redirects to another host without https", code="UnexpectedAnswer")
    return followed


def _manager(proxy: str | None, tls: bool) -> urllib3.PoolManager:
    trusted = _trusted() if tls or (proxy or "").startswith("https://") else None
    if proxy is None:
        return urllib3.PoolManager(maxsize=_MAX_CONNECTIONS, ssl_context=trusted)
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    headers = {}
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers = urllib3.make_headers(proxy_basic_auth=login)
    try:
        return urllib3.ProxyManager(
            f"{parts.scheme}://{host}:{parts.port or _PORTS.get(parts.scheme, 80)}",
            maxsize=_MAX_CONNECTIONS,
            proxy_headers=headers,
            ssl_context=trusted,
        )
    except faults.ProxySchemeUnknown:
        raise StartupError(f"a proxy with {parts.scheme}:// is not supported", code="UnsupportedProxy") from None


def _trusted() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())  # slim images have no certificates of their own
    return context


def _is_small(answer: urllib3.BaseHTTPResponse) -> bool:
    length = answer.headers.get("Content-Length", "")
    return length.isascii() and length.isdigit() and int(length) <= _MAX_DRAINED_BYTES
