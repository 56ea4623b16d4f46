"""The server's side of TLS, from PEM files."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

from tickertape.core.errors import StartupError
from tickertape.settings import Settings

__all__ = ["TlsFiles", "tls_context", "tls_files"]


class TlsFiles(NamedTuple):
    """`client_ca` None: clients need no certificate."""

    cert: Path
    key: Path
    client_ca: Path | None

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(path for path in self if path is not None)


def tls_files(settings: Settings) -> TlsFiles | None:
    """None: the server speaks plain HTTP."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_client_ca)


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """TLS 1.2 and newer, HTTP/1.1. Raises StartupError, code BadTls, when the files cannot be read or do not belong
    together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # The password keeps OpenSSL from asking a terminal for that of an encrypted key.
        context.load_cert_chain(files.cert, files.key, password="")
    except (OSError, ValueError) as error:
        raise _bad(f"certificate {files.cert} and key {files.key}", error) from error
    if files.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(files.client_ca)
        except (OSError, ValueError) as error:
            raise _bad(f"authorities {files.client_ca}", error) from error
    return context


def _bad(what: str, error: Exception) -> StartupError:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return StartupError(f"TLS: the {what} cannot be used: {str(reason).lower().replace('_', ' ')}", code="BadTls")
