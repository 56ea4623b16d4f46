"""Object stores as sources: S3 against moto's server; S3, GCS and Azure against a fake that lists as they do."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

from tests.plugins.fake_origin import FakeOrigin, Fault
from tickertape.plugins import Manifest, OriginBusy, OriginChanged, OriginError, StartupError
from tickertape.plugins.sources.object_store import ObjectStoreSource
from tickertape.testing import RangedSourceConformance, RangedSubject
from tickertape.weights.manifest import make_manifest

WEIGHTS = bytes(range(256)) * 5000
FILES = {"config.json": b'{"model_type": "llama"}', "model.safetensors": WEIGHTS}
OBJECTS = {f"deep/tiny/{path}": data for path, data in {**FILES, "pytorch_model.bin": b"pickle"}.items()}
S3: dict[str, Any] = {"access_key_id": "me", "secret_access_key": "secret", "region": "us-east-1"}


def keys(scheme: str, url: str) -> dict[str, Any]:
    """What obstore wants to know to ask the fake, instead of a cloud."""
    if scheme == "gs":
        nobody = {
            "gcs_base_url": url,
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        return {"service_account_key": json.dumps(nobody)}
    if scheme == "az":
        return {"account_name": "me", "account_key": "c2VjcmV0", "endpoint": url}
    return {**S3, "endpoint": url}


def source_at(origin: FakeOrigin, scheme: str = "s3", stall_s: float = 30.0) -> ObjectStoreSource:
    return ObjectStoreSource(keys(scheme, origin.url), stall_s)


@pytest.fixture(scope="module")
def served() -> Iterator[FakeOrigin]:
    with FakeOrigin() as origin:
        yield origin


@pytest.fixture
def origin(served: FakeOrigin) -> FakeOrigin:
    served.buckets = {"models": dict(OBJECTS)}
    served.requests.clear()
    served.faults.clear()
    return served


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def fill(url: str, bucket: str, objects: Mapping[str, bytes]) -> S3Store:
    import boto3  # type: ignore[import-untyped]

    login = {"aws_access_key_id": "me", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    with closing(boto3.client("s3", endpoint_url=url, **login)) as client:
        client.create_bucket(Bucket=bucket)
    store = S3Store(bucket, endpoint=url, client_options={"allow_http": True}, **S3)
    for path, data in objects.items():
        obstore.put(store, path, data)
    return store


class TestMoto(RangedSourceConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls, moto: str) -> RangedSubject:
        fill(moto, "conformance", OBJECTS)
        source = ObjectStoreSource({**S3, "endpoint": moto})
        return RangedSubject(source, "s3://conformance/deep/tiny", "s3://conformance/deep/none", FILES)


class _Fake(RangedSourceConformance):
    scheme = ""

    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls, served: FakeOrigin) -> RangedSubject:
        served.buckets = {"models": dict(OBJECTS)}
        served.faults.clear()
        at = f"{cls.scheme}://models/deep"
        return RangedSubject(source_at(served, cls.scheme), f"{at}/tiny/", f"{at}/none", FILES)


class TestFakeS3(_Fake):
    scheme = "s3"


class TestFakeGoogle(_Fake):
    scheme = "gs"


class TestFakeAzure(_Fake):
    scheme = "az"


def test_an_object_that_is_replaced_in_s3_is_told(moto: str) -> None:
    store = fill(moto, "replaced", OBJECTS)
    source = ObjectStoreSource({**S3, "endpoint": moto})
    manifest = source.resolve("s3://replaced/deep/tiny")
    obstore.put(store, "deep/tiny/model.safetensors", WEIGHTS[::-1])
    with closing(source.open(manifest)) as reading, pytest.raises(OriginChanged):
        list(reading.read(manifest.files[1], 5, 10))
    assert source.resolve("s3://replaced/deep/tiny").revision != manifest.revision


def test_what_the_environment_says_is_used(moto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an operator would: nothing is configured but by the names that obstore reads."""
    fill(moto, "environment", {f"top/{path}": data for path, data in FILES.items()})
    for name, value in {
        "AWS_ENDPOINT_URL": moto,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }.items():
        monkeypatch.setenv(name, value)
    assert {entry.path for entry in ObjectStoreSource().resolve("s3://environment/top").files} == set(FILES)


@pytest.mark.parametrize(
    ("uri", "chosen"),
    [
        ("s3://models", ["config.json", "x.gguf", "model.safetensors"]),
        ("s3://models/", ["config.json", "model.safetensors"]),
        ("s3://models/x.gguf", ["x.gguf"]),
        ("s3://models/model.safetensors", ["config.json", "model.safetensors"]),
        ("s3://models/my%20dir/", ["a.gguf"]),
    ],
)
def test_a_prefix_or_a_file_of_a_bucket(origin: FakeOrigin, uri: str, chosen: list[str]) -> None:
    origin.buckets["models"] = {**FILES, "x.gguf": b"GGUF", "my dir/a.gguf": b"GGUF", "my dir/": b""}
    paths = [entry.path for entry in source_at(origin).resolve(uri).files]
    assert paths == [path for path in chosen if path != "x.gguf" or uri.endswith("gguf")]


def test_a_manifest_in_the_prefix_brings_digests(origin: FakeOrigin, tmp_path: Path) -> None:
    for path, data in FILES.items():
        (tmp_path / path).write_bytes(data)
    listing = make_manifest(tmp_path)
    bucket = origin.buckets["models"]
    bucket["deep/tiny/manifest.json"] = listing
    manifest = source_at(origin).resolve("s3://models/deep/tiny")
    assert [entry.path for entry in manifest.files] == list(FILES)
    assert all(entry.sha256 and entry.etag for entry in manifest.files)
    bucket["deep/tiny/model.safetensors"] = WEIGHTS + b"x"
    assert refusal(source_at(origin), "s3://models/deep/tiny").code == "BadManifest"
    del bucket["deep/tiny/model.safetensors"]
    assert refusal(source_at(origin), "s3://models/deep/tiny").code == "BadManifest"


def refusal(source: ObjectStoreSource, uri: str) -> StartupError:
    with pytest.raises(StartupError) as caught:
        source.resolve(uri)
    assert "\n" not in caught.value.message
    assert "secret" not in caught.value.message
    return caught.value


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
@pytest.mark.parametrize(
    ("fault", "error", "code"),
    [
        (Fault("models", times=9, status=503), OriginBusy, "TooManyRequests"),
        (Fault("models", times=9, status=429), OriginBusy, "TooManyRequests"),
        (Fault("models", times=9, status=500), OriginError, "FetchFailed"),
        (Fault("models", times=9, cut=0), OriginError, "FetchFailed"),
        (Fault("models", times=9, stall=0), OriginError, "FetchFailed"),
        (Fault("models", times=9, status=401), StartupError, "Unauthorized"),
        (Fault("models", times=9, status=403), StartupError, "Forbidden"),
        (Fault("models", times=9, status=404), StartupError, "NotFound"),
    ],
    ids=["503", "429", "500", "cut", "stall", "401", "403", "404"],
)
def test_a_fault_is_one_line_and_asked_about_once(
    origin: FakeOrigin, scheme: str, fault: Fault, error: type[StartupError], code: str
) -> None:
    source = source_at(origin, scheme, stall_s=0.3)
    manifest = source.resolve(f"{scheme}://models/deep/tiny")
    origin.order(fault)
    origin.requests.clear()
    refused = refusal(source, f"{scheme}://models/deep/tiny")
    assert (type(refused), refused.code, len(origin.requests)) == (error, code, 1)
    with closing(source.open(manifest)) as reading, pytest.raises(StartupError) as caught:
        list(reading.read(manifest.files[1], 5, 5000))
    assert (type(caught.value), caught.value.code, len(origin.requests)) == (error, code, 2)
    assert "\n" not in caught.value.message
    origin.faults.clear()


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault("model.safetensors", cut=500), OriginError),
        (Fault("model.safetensors", stall=500), OriginError),
        (Fault("model.safetensors", whole=True), StartupError),
        (Fault("model.safetensors", shift=(1, 1)), StartupError),
    ],
    ids=["cut", "stall", "whole", "shift"],
)
def test_a_read_that_does_not_come_as_asked_is_an_error(
    origin: FakeOrigin, fault: Fault, error: type[StartupError]
) -> None:
    source = source_at(origin, stall_s=0.3)
    manifest = source.resolve("s3://models/deep/tiny")
    origin.order(fault)
    with closing(source.open(manifest)) as reading, pytest.raises(error):
        list(reading.read(manifest.files[1], 5, 5000))


def test_closing_ends_a_reader_at_its_next_piece(origin: FakeOrigin) -> None:
    source = source_at(origin)
    manifest = source.resolve("s3://models/deep/tiny")
    reading = source.open(manifest)
    pieces = reading.read(manifest.files[1], 0, None)
    reading.close()
    with pytest.raises(OriginError):
        next(pieces)


@pytest.mark.parametrize(
    ("uri", "code"),
    [
        ("s3://", "UnsupportedSource"),
        ("s3://models/tiny?versionId=1", "UnsupportedSource"),
        ("s3://models/pytorch_model.bin", "PickleOnly"),
        ("az://models/tiny", "BadConfig"),
    ],
)
def test_uris_that_cannot_be(origin: FakeOrigin, uri: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR"):
        monkeypatch.delenv(name, raising=False)
    assert refusal(ObjectStoreSource(), uri).code == code
    assert not origin.requests


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tickertape.plugins.sources.object_store.find_spec", lambda name: None)
    source = ObjectStoreSource()
    assert refusal(source, "s3://models/tiny").code == "MissingDependency"
    with pytest.raises(StartupError, match="objectstore"):
        source.open(Manifest("s3://models/tiny", "", ()))
