"""URLs as sources: files and listed directories, and what a faulty or hostile host may do to a read."""

from __future__ import annotations

import hashlib
import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import pytest
import trustme

from tests.plugins.fake_origin import FakeOrigin, Fault, Repo, WebFile
from tickertape.plugins import (
    CHUNK_BYTES,
    FileEntry,
    Manifest,
    Origin,
    OriginBusy,
    OriginChanged,
    OriginError,
    StartupError,
)
from tickertape.plugins.sources.http_answers import retry_after_s
from tickertape.plugins.sources.http_client import HttpClient
from tickertape.plugins.sources.https import HttpsSource
from tickertape.testing import RangedSourceConformance, RangedSubject
from tickertape.weights.manifest import make_manifest

WEIGHTS = bytes(range(256)) * 5000
CONFIG = b'{"model_type": "llama"}'
BESIDE = {"config.json": CONFIG, "tokenizer.json": b"{}", "chat_template.jinja": b"{{ messages }}"}


@pytest.fixture(scope="module")
def served() -> Iterator[FakeOrigin]:
    with FakeOrigin() as origin:
        yield origin


@pytest.fixture
def origin(served: FakeOrigin) -> FakeOrigin:
    served.web.clear()
    served.requests.clear()
    served.faults.clear()
    for path, data in {**BESIDE, "tiny.safetensors": WEIGHTS, "x.gguf": WEIGHTS}.items():
        served.web[f"m/{path}"] = WebFile(data)
    return served


@contextmanager
def opened(url: str, source: HttpsSource | None = None) -> Iterator[tuple[Manifest, Origin]]:
    source = source or HttpsSource()
    manifest = source.resolve(url)
    with closing(source.open(manifest)) as origin:
        yield manifest, origin


def read(origin: Origin, entry: FileEntry, start: int = 0, end: int | None = None) -> bytes:
    return b"".join(bytes(piece) for piece in origin.read(entry, start, end))


def refusal(url: str) -> StartupError:
    with pytest.raises(StartupError) as caught:
        HttpsSource().resolve(url)
    assert "\n" not in caught.value.message
    assert "secret" not in caught.value.message
    return caught.value


def published(origin: FakeOrigin, directory: Path, files: dict[str, bytes]) -> str:
    """A directory with a manifest.json behind the web server, and the digest of that."""
    for path, data in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(data)
        origin.web[f"d/{path}"] = WebFile(data)
    manifest = make_manifest(directory)
    origin.web["d/manifest.json"] = WebFile(manifest)
    return hashlib.sha256(manifest).hexdigest()


class TestAFile(RangedSourceConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls, served: FakeOrigin) -> RangedSubject:
        served.faults.clear()
        served.web = {f"m/{path}": WebFile(data) for path, data in {**BESIDE, "tiny.safetensors": WEIGHTS}.items()}
        files = {**BESIDE, "tiny.safetensors": WEIGHTS}
        return RangedSubject(
            HttpsSource(), f"{served.url}/m/tiny.safetensors", f"{served.url}/m/none.safetensors", files
        )


class TestAListedDirectory(RangedSourceConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls, served: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> RangedSubject:
        served.faults.clear()
        files = {**BESIDE, "model.safetensors": WEIGHTS}
        digest = published(served, tmp_path_factory.mktemp("model"), files)
        url = f"{served.url}/d"
        return RangedSubject(HttpsSource(), url, f"{served.url}/none", files, pinned=f"{url}/#sha256={digest}")


# -- what is listed ----------------------------------------------------------------------------------------------------


def test_a_weights_file_comes_with_what_lies_beside_it(origin: FakeOrigin) -> None:
    manifest = HttpsSource().resolve(f"{origin.url}/m/tiny.safetensors")
    assert {entry.path: entry.size_bytes for entry in manifest.files} == {
        path: len(data) for path, data in {**BESIDE, "tiny.safetensors": WEIGHTS}.items()
    }
    assert all(entry.etag for entry in manifest.files)
    del origin.web["m/config.json"]
    assert refusal(f"{origin.url}/m/tiny.safetensors").code == "NotFound"


def test_stores_that_hide_what_is_not_there_are_understood(origin: FakeOrigin) -> None:
    origin.order(Fault("/tokenizer.json", status=403), Fault("/chat_template.jinja", status=404))
    manifest = HttpsSource().resolve(f"{origin.url}/m/tiny.safetensors")
    assert {entry.path for entry in manifest.files} == {"config.json", "tiny.safetensors"}


def test_a_digest_in_the_url_pins_a_file(origin: FakeOrigin) -> None:
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    manifest = HttpsSource().resolve(f"{origin.url}/m/x.gguf#sha256={digest}")
    (entry,) = manifest.files
    assert (entry.path, entry.sha256) == ("x.gguf", digest)
    assert not any("#" in seen.path for seen in origin.requests)


@pytest.mark.parametrize(
    ("url", "pinned"),
    [
        ("https://host/x.gguf", False),
        ("https://host/x.gguf#sha256=" + "0" * 64, True),
        ("https://host/dir/#sha256=" + "0" * 64, True),
        ("https://host/x.safetensors#sha256=" + "0" * 64, False),  # nothing pins its configuration
        ("https://host/dir", False),
    ],
)
def test_what_is_pinned(url: str, pinned: bool) -> None:
    assert HttpsSource().pinned(url) is pinned


def test_a_manifest_carries_digests_of_files_and_chunks(origin: FakeOrigin, tmp_path: Path) -> None:
    large = bytes(CHUNK_BYTES) + b"tail"
    digest = published(origin, tmp_path, {"config.json": CONFIG, "model.safetensors": large, "old.bin": b"pickle"})
    manifest = HttpsSource().resolve(f"{origin.url}/d/")
    assert manifest.revision == digest
    config, weights = manifest.files
    assert (config.sha256, config.chunk_sha256) == (hashlib.sha256(CONFIG).hexdigest(), ())
    assert weights.sha256 == hashlib.sha256(large).hexdigest()
    assert weights.chunk_sha256 == tuple(hashlib.sha256(part).hexdigest() for part in (bytes(CHUNK_BYTES), b"tail"))
    assert [seen.path for seen in origin.requests] == ["/d/manifest.json"]
    assert refusal(f"{origin.url}/d/#sha256={'0' * 64}").code == "CorruptDownload"


def test_a_manifest_leaves_out_what_is_never_served(tmp_path: Path) -> None:
    for path in ("config.json", "sub/a.txt", "old.bin", ".git/config", "manifest.json"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(b"x")
    listing = json.loads(make_manifest(tmp_path))
    assert [file["path"] for file in listing["files"]] == ["config.json", "sub/a.txt"]
    assert make_manifest(tmp_path) == make_manifest(tmp_path)


SHA = "0" * 64


@pytest.mark.parametrize(
    "listing",
    [
        b"",
        b"[]",
        b'{"files": []}',
        b'{"version": 2, "files": [{"path": "a.json", "size": 1, "sha256": "%s"}]}' % SHA.encode(),
        *(
            json.dumps({"files": [{"path": "config.json", "size": 1, "sha256": SHA} | change]}).encode()
            for change in (
                {"path": "../a"},
                {"path": "/a"},
                {"path": "a//b"},
                {"path": ""},
                {"size": -1},
                {"sha256": "x"},
                {"sha256": SHA.upper().replace("0", "A")},
                {"chunk_sha256": [SHA, SHA]},
                {"chunk_sha256": ["x"]},
            )
        ),
        json.dumps({"files": [{"path": "config.json", "size": 1, "sha256": SHA}] * 2}).encode(),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(origin: FakeOrigin, listing: bytes) -> None:
    origin.web["d/manifest.json"] = WebFile(listing)
    assert refusal(f"{origin.url}/d").code == "BadManifest"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/m", "NoManifest"),
        ("/m/pytorch_model.bin", "PickleOnly"),
        ("/m/none.gguf", "NotFound"),
        ("/m/x.gguf#sha1=00", "UnsupportedSource"),
        ("/m/model-00001-of-00002.safetensors", "UnsupportedFormat"),
    ],
)
def test_what_is_no_model_is_said_in_one_line(origin: FakeOrigin, path: str, code: str) -> None:
    origin.web["m/model-00001-of-00002.safetensors"] = WebFile(WEIGHTS)
    assert refusal(origin.url + path).code == code


@pytest.mark.parametrize(
    ("url", "refused"),
    [
        ("http://models.example/x.gguf", True),
        ("http://models.example/x.safetensors#sha256=" + "0" * 64, True),
        ("http:///x.gguf", True),
        ("https://host:99999/x.gguf", True),
        ("https://me:secret@[::1/x.gguf", True),
        ("http://models.example/x.gguf#sha256=" + "0" * 64, False),
        ("http://models.example/dir#sha256=" + "0" * 64, False),
        ("http://localhost/x.gguf", False),
        ("http://[::1]/x.gguf", False),
        ("https://models.example/x.gguf", False),
    ],
)
def test_http_is_for_this_machine_or_for_what_a_digest_pins(url: str, refused: bool) -> None:
    source = HttpsSource()
    if refused:
        assert refusal(url).code == "UnsupportedSource"
    else:
        source.open(Manifest(url, "", ())).close()


# -- how it is read ----------------------------------------------------------------------------------------------------


def test_a_host_without_ranges_is_fine_for_small_files_only(origin: FakeOrigin) -> None:
    origin.web["m/x.gguf"] = WebFile(WEIGHTS, ranges=False)
    with opened(f"{origin.url}/m/x.gguf") as (manifest, reading):
        assert read(reading, manifest.files[0]) == WEIGHTS
        with pytest.raises(OriginChanged, match="a part was asked for") as caught:
            read(reading, manifest.files[0], 5, 10)
        assert caught.value.code == "UnexpectedAnswer"
        with pytest.raises(OriginChanged, match="a part was asked for"):
            read(reading, manifest.files[0], 0, 10)
    origin.web["m/x.gguf"] = WebFile(bytes(CHUNK_BYTES + 1), ranges=False)
    assert refusal(f"{origin.url}/m/x.gguf").code == "NoRanges"


@pytest.mark.parametrize(
    "file",
    [
        WebFile(WEIGHTS),
        WebFile(WEIGHTS, etag='W/"weak"'),
        WebFile(WEIGHTS, etag=None, last_modified=1_700_000_000),
        WebFile(WEIGHTS, etag=None, last_modified=None),
    ],
    ids=["strong", "weak", "date", "size"],
)
@pytest.mark.parametrize("obeys", [True, False], ids=["412", "silent"])
def test_a_file_that_was_replaced_is_told(origin: FakeOrigin, file: WebFile, obeys: bool) -> None:
    """Whether the host understands conditions or not."""
    origin.web["m/x.gguf"] = file
    with opened(f"{origin.url}/m/x.gguf") as (manifest, reading):
        assert read(reading, manifest.files[0], 3, 9) == WEIGHTS[3:9]
        assert read(reading, manifest.files[0]) == WEIGHTS
        changed = None if file.etag is None else 'W/"new"' if file.etag else '"new"'
        later = None if file.last_modified is None else file.last_modified + 1
        data = WEIGHTS if file.etag is not None or later is not None else WEIGHTS[:-1]
        origin.web["m/x.gguf"] = WebFile(data, changed, later, deaf=not obeys)
        for start, end in ((3, 9), (0, None)):
            with pytest.raises(OriginChanged) as caught:
                read(reading, manifest.files[0], start, end)
            assert caught.value.code == "RevisionMoved"
        conditions = {name: value for name, value in origin.requests[-1].headers.items() if name.startswith("if-")}
        strong = manifest.files[0].etag if file.etag == "" else None
        date = manifest.files[0].etag if later is not None else None
        assert conditions == ({"if-match": strong} if strong else {"if-unmodified-since": date} if date else {})


def test_a_file_that_shrank_is_told(origin: FakeOrigin) -> None:
    with opened(f"{origin.url}/m/x.gguf") as (manifest, reading):
        etag = manifest.files[0].etag
        origin.web["m/x.gguf"] = WebFile(WEIGHTS[:100], etag=etag)
        for start, end in ((200, 300), (50, 150), (0, None)):
            with pytest.raises(OriginChanged) as caught:
                read(reading, manifest.files[0], start, end)
            assert caught.value.code == "RevisionMoved"


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_a_file_that_was_replaced_is_told_whatever_else_is_wrong(origin: FakeOrigin, knows_ranges: bool) -> None:
    with opened(f"{origin.url}/m/x.gguf") as (manifest, reading):
        origin.web["m/x.gguf"] = WebFile(WEIGHTS, '"new"', deaf=True, ranges=knows_ranges)
        origin.order(Fault("x.gguf", shift=(1, 0)))
        with pytest.raises(OriginChanged, match="replaced") as caught:
            read(reading, manifest.files[0], 3, 9)
        assert caught.value.code == "RevisionMoved"


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (Fault("x.gguf", whole=True), OriginChanged, "the whole came"),
        (Fault("x.gguf", shift=(-1, 0)), OriginChanged, "another range"),
        (Fault("x.gguf", shift=(0, 1)), OriginChanged, "another range"),
        (Fault("x.gguf", encoded=True), OriginChanged, "encoding"),
        (Fault("x.gguf", cut=0), OriginError, "broke"),
        (Fault("x.gguf", cut=500), OriginError, "broke"),
        (Fault("x.gguf", cut=500, unsized=True), OriginError, "7500 bytes less"),
        (Fault("x.gguf", stall=500), OriginError, "nothing came for 0.2 s"),
        (Fault("x.gguf", status=412), OriginChanged, "not what it was"),
        (Fault("x.gguf", status=416), OriginChanged, "not what it was"),
        (Fault("x.gguf", status=500), OriginError, "failed"),
        (Fault("x.gguf", status=503, headers={"Retry-After": "4"}), OriginBusy, "not available"),
        (Fault("x.gguf", status=429), OriginBusy, "too many"),
        (Fault("x.gguf", status=401), StartupError, "credentials"),
        (Fault("x.gguf", status=403), StartupError, "denied"),
        (Fault("x.gguf", status=404), StartupError, "not found"),
        (Fault("x.gguf", status=418), StartupError, "418"),
        (Fault("x.gguf", status=302), StartupError, "302"),
        (Fault("x.gguf", times=9, status=302, headers={"Location": "/m/x.gguf"}), StartupError, "again and again"),
    ],
    ids=lambda value: "" if isinstance(value, type) else None,
)
def test_a_fault_is_one_line_and_the_next_read_is_whole(
    origin: FakeOrigin, fault: Fault, error: type[StartupError], words: str
) -> None:
    with opened(f"{origin.url}/m/x.gguf?token=secret", HttpsSource(stall_s=0.2)) as (manifest, reading):
        origin.order(fault)
        got = bytearray()
        pieces = reading.read(manifest.files[0], 1000, 9000)
        with pytest.raises(error, match=words) as caught:
            got.extend(byte for piece in pieces for byte in piece)
        assert type(caught.value) is error
        if error is OriginChanged:
            assert caught.value.code == ("RevisionMoved" if fault.status is not None else "UnexpectedAnswer")
        assert WEIGHTS[1000:9000].startswith(got)
        assert len(got) < 8000
        assert "\n" not in caught.value.message
        assert "secret" not in caught.value.message
        origin.faults.clear()
        assert read(reading, manifest.files[0], 1000, 9000) == WEIGHTS[1000:9000]


def test_connections_are_kept_and_dropped_ones_made_anew(origin: FakeOrigin) -> None:
    with opened(f"{origin.url}/m/x.gguf") as (manifest, reading):
        before = origin.num_connections
        for _ in range(5):
            assert read(reading, manifest.files[0], 5, 10) == WEIGHTS[5:10]
        assert origin.num_connections == before + 1
        origin.hang_up()
        assert read(reading, manifest.files[0], 5, 10) == WEIGHTS[5:10]


def test_closing_ends_a_reader_that_waits(origin: FakeOrigin) -> None:
    source = HttpsSource(stall_s=60)
    manifest = source.resolve(f"{origin.url}/m/x.gguf")
    reading = source.open(manifest)
    origin.order(Fault("x.gguf", stall=500))
    pieces = reading.read(manifest.files[0], 0, 9000)
    assert len(next(pieces)) == 500
    said: list[str] = []
    waiting = threading.Thread(target=_expect_the_end, args=(pieces, said))
    waiting.start()
    reading.close()
    waiting.join(30)
    assert said == [f"{origin.url}/m/x.gguf: the fetch has ended"]
    with pytest.raises(OriginError, match="has ended"):
        read(reading, manifest.files[0])


def _expect_the_end(pieces: Generator[memoryview, None, None], said: list[str]) -> None:
    try:
        next(pieces)
    except OriginError as error:
        said.append(error.message)


# -- what is nobody else's business ------------------------------------------------------------------------------------


def test_credentials_of_a_url_go_to_its_host_and_no_further(origin: FakeOrigin) -> None:
    url = origin.url.replace("://", "://me:se%20cret@")
    origin.web["elsewhere"] = WebFile(WEIGHTS)
    with opened(f"{url}/m/x.gguf?sig=1") as (manifest, reading):
        origin.order(Fault("/m/x.gguf", times=9, status=307, headers={"Location": f"{origin.cdn_url}/elsewhere"}))
        with pytest.raises(StartupError, match="denied") as caught:
            read(reading, manifest.files[0], 0, 5)
        assert "se cret" not in caught.value.message
        assert "se%20cret" not in caught.value.message
    assert all(seen.headers["authorization"] == "Basic bWU6c2UgY3JldA==" for seen in origin.asked("hub"))
    assert all(seen.query == {"sig": ["1"]} for seen in origin.asked("hub"))
    assert origin.asked("cdn")
    assert not any("authorization" in seen.headers for seen in origin.asked("cdn"))


@pytest.mark.parametrize("target", ["http://[::1", "http://h:99999/x", "file:///etc/passwd", "ftp://h/x"])
def test_a_redirect_that_leads_nowhere_is_said_in_one_line(origin: FakeOrigin, target: str) -> None:
    origin.order(Fault("/m/x.gguf", status=302, headers={"Location": target}))
    said = refusal(f"{origin.url}/m/x.gguf?sig=secret")
    assert said.code == "UnexpectedAnswer"
    assert "secret" not in said.message


@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_redirect_leaves_this_machine_without_https_only_for_what_a_digest_pins(
    origin: FakeOrigin, monkeypatch: pytest.MonkeyPatch, is_pinned: bool
) -> None:
    """The fake server, as a proxy, answers for any other host."""
    monkeypatch.setenv("http_proxy", origin.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    url = f"{origin.url}/m/x.gguf" + (f"#sha256={hashlib.sha256(WEIGHTS).hexdigest()}" if is_pinned else "")
    away = Fault("/m/x.gguf", status=307, headers={"Location": "http://models.example/m/x.gguf"})
    with opened(url) as (manifest, reading):
        origin.order(away)
        if is_pinned:
            assert read(reading, manifest.files[0], 5, 10) == WEIGHTS[5:10]
            assert origin.requests[-1].headers["host"] == "models.example"
            return
        with pytest.raises(StartupError, match="to another host without https") as caught:
            read(reading, manifest.files[0], 5, 10)
        assert caught.value.code == "UnexpectedAnswer"
        origin.order(replace(away, times=1))
        assert refusal(url).code == "UnexpectedAnswer"
        here = origin.url.replace("127.0.0.1", "localhost")
        origin.order(replace(away, times=1, headers={"Location": f"{here}/m/x.gguf"}))
        assert read(reading, manifest.files[0], 5, 10) == WEIGHTS[5:10]
        assert not any(seen.headers["host"] == "models.example" for seen in origin.requests)


def test_a_proxy_of_the_environment_is_used_and_no_proxy_is_obeyed(
    origin: FakeOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake server answers requests for any host, as a proxy would be asked."""
    monkeypatch.setenv("http_proxy", origin.url.replace("://", "://me:secret@"))
    monkeypatch.setenv("no_proxy", "")
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    source = HttpsSource()
    manifest = source.resolve(f"http://models.example/m/x.gguf#sha256={digest}")
    assert manifest.files[0].size_bytes == len(WEIGHTS)
    assert origin.requests[-1].headers["host"] == "models.example"
    assert origin.requests[-1].headers["proxy-authorization"] == "Basic bWU6c2VjcmV0"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    source.resolve(f"{origin.url}/m/x.gguf")
    assert "proxy-authorization" not in origin.requests[-1].headers
    monkeypatch.setenv("http_proxy", "socks5://me:secret@127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    assert refusal(f"{origin.url}/m/x.gguf").code == "UnsupportedProxy"


def test_certificates_are_checked_and_https_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with FakeOrigin(context) as origin, FakeOrigin() as plain:
        origin.web["x.gguf"] = plain.web["x.gguf"] = WebFile(WEIGHTS)
        assert refusal(f"{origin.url}/x.gguf").code == "CertificateRejected"
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        with opened(f"{origin.url}/x.gguf") as (manifest, reading):
            assert read(reading, manifest.files[0], 5, 2_000) == WEIGHTS[5:2_000]
            origin.order(Fault("x.gguf", status=302, headers={"Location": f"{plain.url}/x.gguf"}))
            with pytest.raises(StartupError, match="away from https"):
                read(reading, manifest.files[0], 5, 10)
        assert not plain.requests


LOGGED = """
import sys
from tickertape.logs import configure_logs
from tickertape.plugins.sources.hf import HubSource
from tickertape.plugins.sources.https import HttpsSource
configure_logs("debug", "fetcher")
web, hub = HttpsSource(), HubSource(sys.argv[1], "a-secret")
for source, uri in ((web, f"{sys.argv[1]}/m/x.gguf?token=a-secret"), (hub, "hf://org/tiny")):
    manifest = source.resolve(uri)
    origin = source.open(manifest)
    assert sum(len(piece) for piece in origin.read(manifest.files[0], 0, None)) == manifest.files[0].size_bytes
    origin.close()
"""


def test_no_secret_is_logged_at_any_level(origin: FakeOrigin) -> None:
    origin.hub["org/tiny"] = Repo({"x.gguf": WEIGHTS}, lfs=("x.gguf",))
    origin.tokens.add("a-secret")
    command = [sys.executable, "-c", LOGGED, origin.url]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    assert len(origin.asked("cdn")) == 1
    assert "a-secret" not in run.stderr + run.stdout
    assert "Signature" not in run.stderr + run.stdout


def test_a_date_to_try_again_is_read_by_our_clock_without_another(origin: FakeOrigin) -> None:
    origin.order(Fault("x.gguf", status=429, headers={"Retry-After": formatdate(0, usegmt=True), "Date": "?"}))
    with closing(HttpClient()) as client:
        answer, _ = client.get(f"{origin.url}/m/x.gguf")
        client.done(answer)
    assert retry_after_s(answer.headers) == 0.0
