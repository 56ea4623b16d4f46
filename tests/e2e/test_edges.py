"""The edges of a real server: keys and certificates that change under it, mutual TLS, other origins, proxies, heads."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import signal
import socket
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from tickertape.testing.processes import Server, ServerProcess, events, text_of, wait_until

Serve = Callable[..., Server]

MANY = httpx.Limits(max_connections=None)

CHUNKED = (
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
)


class TlsServer(Server):
    """A server spoken to over TLS; its client trusts `authority` and shows `certificate`."""

    def __init__(
        self,
        arguments: list[str],
        *,
        authority: trustme.CA,
        certificate: trustme.LeafCert | None = None,
        **options: Any,
    ) -> None:
        super().__init__(arguments, **options)
        self.client.close()
        self.url = f"https://localhost:{self.port}"
        self.client = self.trusting(authority, certificate)

    def trusting(self, authority: trustme.CA, certificate: trustme.LeafCert | None = None) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30, verify=context_of(authority, certificate))


def context_of(authority: trustme.CA, certificate: trustme.LeafCert | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if certificate is not None:
        certificate.configure_cert(context)
    return context


class Pem:
    """A directory with the server's files."""

    def __init__(self, directory: Path) -> None:
        self.cert, self.key, self.client_ca = directory / "tls.crt", directory / "tls.key", directory / "ca.crt"

    def write(self, authority: trustme.CA) -> None:
        issued = authority.issue_cert("localhost")
        issued.private_key_pem.write_to_path(self.key)
        for n, blob in enumerate(issued.cert_chain_pems):
            blob.write_to_path(self.cert, append=n > 0)

    @property
    def arguments(self) -> list[str]:
        return ["--host", "localhost", "--port", "0", "--tls-cert", str(self.cert), "--tls-key", str(self.key)]


@pytest.fixture
def pem(tmp_path: Path) -> Pem:
    return Pem(tmp_path)


def accepts(server: TlsServer, authority: trustme.CA) -> bool:
    """Whether its certificate is the authority's."""
    with server.trusting(authority) as client:
        try:
            return client.get("/readyz").status_code == 200
        except httpx.ConnectError:
            return False


def logged(server: ServerProcess, message: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in server.stderr().splitlines() if line.startswith("{")]
    return [line for line in lines if message in line["message"]]


def test_certificates_are_read_again_and_open_streams_go_on(
    start: Callable[..., TlsServer], tiny: Path, pem: Pem
) -> None:
    first, second = trustme.CA(), trustme.CA()
    pem.write(first)
    server = start(TlsServer, f"tiny={tiny}", *pem.arguments, authority=first)
    server.until_ready()
    assert f"https://localhost:{server.port}" in server.stderr()
    with server.stream("slow", max_tokens=290) as response:
        lines = response.iter_lines()
        next(lines)
        pem.write(second)
        wait_until(lambda: bool(logged(server, "TLS certificates read again")))
        with server.trusting(second) as later:
            assert later.get("/readyz").status_code == 200
        with server.trusting(first) as late, pytest.raises(httpx.ConnectError, match="verify"):
            late.get("/readyz")
        assert text_of(events(lines)).endswith("0123456789")
    pem.key.write_text("no key")  # what cannot be used changes nothing
    wait_until(lambda: bool(logged(server, "not read again")))
    with server.trusting(second) as later:
        assert later.get("/readyz").status_code == 200
    for again in (trustme.CA(), trustme.CA()):
        pem.write(again)
        wait_until(lambda again=again: accepts(server, again))  # type: ignore[misc]
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"http://localhost:{server.port}/livez")


def test_clients_show_a_certificate_of_the_authority_of_the_day(
    start: Callable[..., TlsServer], tiny: Path, pem: Pem
) -> None:
    ours, theirs, later = trustme.CA(), trustme.CA(), trustme.CA()
    pem.write(ours)
    theirs.cert_pem.write_to_path(pem.client_ca)
    known, unknown = theirs.issue_cert("a@client.example"), later.issue_cert("b@client.example")
    arguments = [*pem.arguments, "--tls-client-ca", str(pem.client_ca)]
    server = start(TlsServer, f"tiny={tiny}", *arguments, authority=ours, certificate=known)
    server.until_ready()
    for certificate in (None, unknown):
        with server.trusting(ours, certificate) as refused, pytest.raises(httpx.TransportError):
            refused.get("/readyz")
    kept = context_of(ours, known)
    answer, session = livez_over_tls(server.port, kept)
    assert answer.startswith(b"HTTP/1.1 200")
    assert livez_over_tls(server.port, kept, session)[0] == answer
    later.cert_pem.write_to_path(pem.client_ca)
    wait_until(lambda: bool(logged(server, "TLS certificates read again")))
    with server.trusting(ours, unknown) as accepted:
        assert accepted.get("/readyz").status_code == 200
    assert livez_over_tls(server.port, kept, session)[0] == b""  # a session from before opens no door either


def livez_over_tls(
    port: int, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[bytes, ssl.SSLSession | None]:
    """The status line and what is needed to resume the session; nothing when the server hangs up."""
    try:
        with (
            socket.create_connection(("localhost", port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="localhost", session=session) as connection,
        ):
            connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            answer = connection.recv(65536).partition(b"\r\n")[0]
            return answer, connection.session
    except OSError:
        return b"", None


@pytest.mark.parametrize("fault", ["missing", "mismatched", "no authority"])
def test_unusable_certificates_keep_it_from_starting(
    start: Callable[..., ServerProcess], tiny: Path, pem: Pem, fault: str
) -> None:
    pem.write(trustme.CA())
    arguments = [f"tiny={tiny}", *pem.arguments]
    if fault == "missing":
        pem.cert.unlink()
    elif fault == "mismatched":
        trustme.CA().issue_cert("localhost").private_key_pem.write_to_path(pem.key)
    else:
        pem.client_ca.write_text("nobody")
        arguments += ["--tls-client-ca", str(pem.client_ca)]
    server = start(ServerProcess, *arguments)
    assert server.wait() == 1
    assert "tickertape: TLS: the " in server.stderr()


def test_keys_are_read_again(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    digest = hashlib.sha256(b"sk-second").hexdigest()
    file.write_text(f"# ours\nsk-first\n\nsha256:{digest}\n")
    server = serve("--api-keys", str(file)).until_ready()

    def asked(key: str) -> int:
        return server.client.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code

    assert [asked(key) for key in ("sk-first", "sk-second", "sk-third", f"sha256:{digest}")] == [200, 200, 401, 401]
    file.write_text("sk-third\n")
    wait_until(lambda: asked("sk-third") == 200)
    assert [asked(key) for key in ("sk-first", "sk-second")] == [401, 401]
    file.write_text("# nobody\n")  # never: everybody
    wait_until(lambda: bool(logged(server, "not read again")))
    assert (asked("sk-third"), server.client.get("/v1/models").status_code) == (200, 401)
    file.write_text("sk-fourth\n")
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: asked("sk-fourth") == 200)
    assert "sk-" not in server.stderr()


def test_several_keys_from_the_environment(serve: Serve) -> None:
    server = serve(environment={"TICKERTAPE_API_KEY": "sk-a, sk-b"}).until_ready()
    for key, status in (("sk-a", 200), ("sk-b", 200), ("sk-a, sk-b", 401), ("sk-c", 401)):
        answer = server.client.get("/v1/models", headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == status


def test_pages_of_the_named_origins_may_call(serve: Serve) -> None:
    server = serve("--cors-origins", "https://chat.example,http://localhost:3000", "--api-key", "k").until_ready()
    asking = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-stainless-os"}
    allowed = server.client.options("/v1/chat/completions", headers={"origin": "https://chat.example", **asking})
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://chat.example"
    assert "x-stainless-os" in allowed.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in allowed.headers
    refused = server.client.get("/v1/models", headers={"origin": "http://localhost:3000"})
    assert refused.status_code == 401  # a page may read why
    assert refused.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert {"x-request-id", "retry-after"} <= set(refused.headers["access-control-expose-headers"].split(", "))
    for origin in ("https://chat.example.evil", "http://localhost:3001", "null"):
        answer = server.client.options("/v1/chat/completions", headers={"origin": origin, **asking})
        assert "access-control-allow-origin" not in answer.headers


def test_no_origin_may_call_by_default(serve: Serve) -> None:
    server = serve().until_ready()
    asking = {"origin": "https://chat.example", "access-control-request-method": "POST"}
    assert server.client.options("/v1/chat/completions", headers=asking).status_code == 405
    answer = server.client.get("/v1/models", headers={"origin": "https://chat.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("trusted", "client"), [("127.0.0.0/8,10.0.0.0/8", "203.0.113.7"), ("10.0.0.0/8", "127.0.0.1")]
)
def test_only_trusted_proxies_say_who_asks(serve: Serve, trusted: str, client: str) -> None:
    server = serve("--trusted-proxies", trusted).until_ready()
    forwarded = {"x-forwarded-for": "198.51.100.1, 203.0.113.7, 10.1.2.3", "x-forwarded-proto": "https"}
    assert server.client.get("/v1/models", headers=forwarded).status_code == 200
    wait_until(lambda: bool(logged(server, "GET /v1/models")))
    assert logged(server, "GET /v1/models")[0]["client"] == client


class Planted:
    """What its unpickling would do."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


def test_case_127_no_socket_takes_pickles(serve: Serve, tmp_path: Path) -> None:
    """That only the HTTP port listens is shown in test_serving.py; nor is there a Unix socket that others may reach."""
    server = serve().until_ready()
    own = {
        Path(f"/proc/{pid}/fd/{entry.name}").readlink().name
        for pid in (server.process.pid, *server.children())
        for entry in Path(f"/proc/{pid}/fd").iterdir()
    }
    table = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    assert [fields for fields in table if f"socket:[{fields[6]}]" in own and len(fields) > 7] == []  # none has a name
    planted = tmp_path / "planted"
    for protocol in (0, 2, 5):
        assert answered(server.port, pickle.dumps(Planted(planted), protocol)).startswith(b"HTTP/1.1 400")
    assert server.ask("Q").status_code == 200
    assert not planted.exists()


def answered(port: int, *parts: bytes) -> bytes:
    """The answer to bytes sent as they are, whether they are all taken or not."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        with suppress(ConnectionError):
            for part in parts:
                connection.sendall(part)
        received = b""
        while True:
            head, _, body = received.partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            if body and length is not None and len(body) >= int(length[1]):
                return received
            data = connection.recv(65536)
            assert data, "the connection was closed without an answer"
            received += data


def test_heads_are_bounded(serve: Serve) -> None:
    server = serve("--max-header-bytes", "8KiB", "--max-headers", "20").until_ready()
    begin = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    assert answered(server.port, begin + b"a: " + b"x" * 7000 + b"\r\n\r\n").startswith(b"HTTP/1.1 200")
    for head in (
        [begin + b"authorization: Bearer " + b"x" * 9000 + b"\r\n\r\n"],
        [begin, *[b"x" * 1000] * 1000],  # a name that never ends
        [begin + b"a: ", *[b"x" * 1000] * 1000],  # a value that never ends
        [b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nhost: x\r\n\r\n"],
        [begin + b"".join(b"h%d: x\r\n" % n for n in range(30)) + b"\r\n"],
    ):
        answer = answered(server.port, *head)
        assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "headers_too_large")
    garbage = answered(server.port, b"\x16\x03\x01 hello\r\n\r\n")
    assert garbage.startswith(b"HTTP/1.1 400")
    assert json.loads(garbage.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"
    assert server.ask("Q").status_code == 200


def test_trailers_are_bounded(serve: Serve) -> None:
    server = serve("--max-header-bytes", "8KiB").until_ready()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(CHUNKED + b"2\r\n{}\r\n0\r\na: ")
        deadline = time.monotonic() + 20
        with suppress(OSError):  # the server hangs up
            while time.monotonic() < deadline:
                connection.sendall(b"x" * 10_000)
                time.sleep(0.001)
        assert time.monotonic() < deadline


def test_case_138_a_body_without_a_length_is_cut_off_while_it_comes(serve: Serve) -> None:
    server = serve("--max-body-bytes", "1MiB").until_ready()
    piece = b"10000\r\n" + b'"' * 0x10000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(CHUNKED)
        for _ in range(20):  # never the last chunk: the answer does not wait for it
            connection.sendall(piece)
        answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 413")
        before = resident_kib(server.process.pid)
        for _ in range(500):  # what still comes is thrown away
            connection.sendall(piece)
        assert resident_kib(server.process.pid) - before < 8 << 10
    assert server.ask("Q").status_code == 200


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def test_limits_and_timeouts_are_settings(serve: Serve) -> None:
    """135."""
    server = serve("--max-choices", "3", "--max-stop-strings", "1", "--request-timeout-s", "0.3", "--max-num-seqs", "1")
    server.until_ready()
    refused = server.ask("Q", n=4)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
    assert "3" in refused.json()["error"]["message"]
    assert server.ask("Q", stop=["a", "b"]).json()["error"]["param"] == "stop"
    answer = server.ask("Q", n=3, max_tokens=1)
    assert answer.status_code == 200
    assert answer.json()["system_fingerprint"].startswith("fp_")
    with server.stream("endless", max_tokens=1000) as response:
        lines = response.iter_lines()
        while '"text":"t"' not in next(lines):
            pass
        late = server.ask("Q")  # the only row is taken
    assert (late.status_code, late.headers["x-should-retry"]) == (408, "false")


def test_the_admission_bounds_what_waits_and_nothing_before_it(serve: Serve) -> None:
    server = serve("--max-num-seqs", "4").until_ready()
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Q"}], "max_tokens": 2}
    with ThreadPoolExecutor(200) as threads, httpx.Client(base_url=server.url, timeout=60, limits=MANY) as client:
        answers = list(threads.map(lambda _: client.post("/v1/chat/completions", json=body).status_code, range(200)))
    assert answers == [200] * 200
