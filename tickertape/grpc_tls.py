"""The gRPC server's side of TLS, from the same files as HTTPS."""

from __future__ import annotations

import logging
from typing import Final

import grpc

from tickertape.core.errors import StartupError
from tickertape.tls import TlsFiles, tls_context

__all__ = ["credentials"]

_log: Final = logging.getLogger(__name__)

Signature = tuple[tuple[int, int, int], ...]


class _Certificates:
    """What gRPC asks before each handshake, on a thread of its own."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._seen = self._signature()

    def read(self) -> grpc.ServerCertificateConfiguration:
        """Raises StartupError, code BadTls, for files that cannot be used; and OSError."""
        files = self._files
        tls_context(files)  # says what is wrong with them; gRPC would say it at the first client
        return grpc.ssl_server_certificate_configuration(
            [(files.key.read_bytes(), files.cert.read_bytes())],
            root_certificates=None if files.client_ca is None else files.client_ca.read_bytes(),
        )

    def renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """None: what it has is good still."""
        try:
            signature = self._signature()
            if signature == self._seen:
                return None
            self._seen = signature
            return self.read()
        except (OSError, StartupError) as error:
            _log.error("TLS certificates of gRPC not read again, what was read before stays in force: %s", error)
            return None

    def _signature(self) -> Signature:
        found = [path.stat() for path in self._files.paths]
        return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in found)


def credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Follow the files from handshake to handshake. Raises StartupError, code BadTls."""
    certificates = _Certificates(files)
    return grpc.dynamic_ssl_server_credentials(
        certificates.read(), certificates.renewed, require_client_authentication=files.client_ca is not None
    )
