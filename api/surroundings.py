"""What stands around the edge: leave for the pages of other origins, and the word of proxies about their clients."""

from __future__ import annotations

from typing import Any, Final

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from tickertape.api.options import WireOptions

__all__ = ["EXPOSED_HEADERS", "surrounded"]

EXPOSED_HEADERS: Final = ("x-request-id", "retry-after", "retry-after-ms", "x-should-retry", "x-tickertape-ignored")
"""What a page of another origin may read besides the answer."""

_PREFLIGHT_S: Final = 600


def surrounded(app: ASGIApp, options: WireOptions) -> ASGIApp:
    """A preflight is answered here, without a key: browsers send none. Cookies are never asked for, so no page can act
    in its visitor's name. `x-forwarded-for` and `x-forwarded-proto` of others than the trusted proxies are ignored."""
    if options.cors_origins:
        app = CORSMiddleware(
            app,
            allow_origins=options.cors_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=EXPOSED_HEADERS,
            max_age=_PREFLIGHT_S,
        )
    if options.trusted_proxies:
        trusting: Any = ProxyHeadersMiddleware  # typed with uvicorn's own names for the same three arguments
        app = trusting(app, trusted_hosts=list(options.trusted_proxies))
    return app
