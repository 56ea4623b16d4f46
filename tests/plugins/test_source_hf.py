"""The hub as a source, against a fake one: what it lists, how its bytes come, and what its refusals say."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

import tickertape
from tests.plugins.fake_origin import FakeOrigin, Fault, Repo, WebFile, git_sha1
from tickertape.plugins import AnySource, Manifest, ModelSpec, OriginBusy, OriginChanged, OriginError, StartupError
from tickertape.plugins.sources.directory import DirectorySource
from tickertape.plugins.sources.hf import HubModel, HubSource
from tickertape.testing import RangedSourceConformance, RangedSubject, write_llama
from tickertape.weights.materialize import materialize
from tickertape.weights.store import Store

WEIGHTS = bytes(range(256)) * 900
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "generation_config.json": b"{}",
    "tokenizer.json": b'{"version": "1.0"}',
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": WEIGHTS,
}
NOISE = {
    ".gitattributes": b"*.safetensors filter=lfs",
    "README.md": b"# a model",
    "pytorch_model.bin": b"pickle",
    "pytorch_model.bin.index.json": b"{}",
    "original/consolidated.00.pth": b"pickle",
    "onnx/model.onnx": b"onnx",
    "consolidated.safetensors": b"again",
    "trainer_state.json": b"{}",
    "training_args.bin": b"pickle",
    "x.Q4_0.gguf": b"GGUF",
}
SECRET = "granted"


@pytest.fixture(scope="module")
def served() -> Iterator[FakeOrigin]:
    with FakeOrigin() as origin:
        yield origin
    huggingface_hub.close_session()


@pytest.fixture
def origin(served: FakeOrigin) -> FakeOrigin:
    served.hub = {"org/tiny": Repo(FILES | NOISE, lfs=("model.safetensors", "x.Q4_0.gguf"))}
    served.requests.clear()
    served.faults.clear()
    return served


def resolved(origin: FakeOrigin, uri: str = "hf://org/tiny", token: str = SECRET) -> Manifest:
    return HubSource(origin.url, token).resolve(uri)


def refusal(origin: FakeOrigin, uri: str = "hf://org/tiny", token: str = SECRET) -> StartupError:
    with pytest.raises(StartupError) as caught:
        resolved(origin, uri, token)
    assert "\n" not in caught.value.message
    assert token not in caught.value.message
    return caught.value


def read(source: HubSource, manifest: Manifest, path: str, start: int = 0, end: int | None = None) -> bytes:
    entry = next(entry for entry in manifest.files if entry.path == path)
    origin = source.open(manifest)
    try:
        return b"".join(bytes(piece) for piece in origin.read(entry, start, end))
    finally:
        origin.close()


class TestHub(RangedSourceConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls, served: FakeOrigin) -> RangedSubject:
        repo = Repo(FILES | NOISE, lfs=("model.safetensors",))
        served.hub = {"org/tiny": repo}
        served.faults.clear()
        source = HubSource(served.url, SECRET)
        return RangedSubject(source, "hf://org/tiny", "hf://org/nothing", FILES, pinned=f"hf://org/tiny@{repo.commit}")


def test_a_listing_says_what_every_file_is(origin: FakeOrigin) -> None:
    manifest = resolved(origin)
    assert manifest.revision == origin.hub["org/tiny"].commit
    assert {entry.path for entry in manifest.files} == set(FILES)
    for entry in manifest.files:
        large = entry.path == "model.safetensors"
        assert entry.sha256 == (hashlib.sha256(WEIGHTS).hexdigest() if large else None)
        assert entry.git_sha1 == (None if large else git_sha1(FILES[entry.path]))
    (seen,) = origin.requests
    assert seen.query == {"blobs": ["true"]} or seen.query == {"blobs": ["True"]}


def test_the_token_stays_with_the_hub_and_a_signed_url_is_used_again(origin: FakeOrigin) -> None:
    source = HubSource(origin.url, SECRET)
    manifest = source.resolve("hf://org/tiny")
    opened = source.open(manifest)
    entry = next(entry for entry in manifest.files if entry.path == "model.safetensors")
    for start in range(0, 5000, 1000):
        assert b"".join(map(bytes, opened.read(entry, start, start + 1000))) == WEIGHTS[start : start + 1000]
    opened.close()
    hub, cdn = origin.asked("hub"), origin.asked("cdn")
    assert all(seen.headers["authorization"] == f"Bearer {SECRET}" for seen in hub)
    assert not any("authorization" in seen.headers for seen in cdn)
    assert (len(origin.asked("hub", "/resolve/")), len(cdn)) == (1, 5)
    assert origin.asked("hub", "/resolve/")[0].path == f"/org/tiny/resolve/{manifest.revision}/model.safetensors"


def test_a_signed_url_that_has_lapsed_is_asked_for_again(origin: FakeOrigin) -> None:
    source = HubSource(origin.url, SECRET)
    manifest = source.resolve("hf://org/tiny")
    opened = source.open(manifest)
    entry = next(entry for entry in manifest.files if entry.path == "model.safetensors")
    for _ in range(3):
        assert b"".join(map(bytes, opened.read(entry, 7, 99))) == WEIGHTS[7:99]
        origin.expire()
    opened.close()
    assert len(origin.asked("hub", "/resolve/")) == 3


def test_a_cdn_that_refuses_fresh_urls_is_not_asked_for_ever(origin: FakeOrigin) -> None:
    source = HubSource(origin.url, SECRET)
    manifest = source.resolve("hf://org/tiny")
    origin.order(Fault("/blobs/", times=9, status=403))
    with pytest.raises(StartupError) as caught:
        read(source, manifest, "model.safetensors")
    assert caught.value.code == "Forbidden"
    assert len(origin.asked("cdn")) == 1


@pytest.mark.parametrize(
    ("repo", "token", "uri", "code", "words"),
    [
        (Repo(FILES), "wrong", "hf://org/tiny", "Unauthorized", "does not accept the token"),
        (Repo(FILES, private=True), "other", "hf://org/tiny", "NotFound", "the token may not see it"),
        (Repo(FILES, private=True), "", "hf://org/tiny", "NotFound", "set HF_TOKEN"),
        (Repo(FILES), SECRET, "hf://org/none", "NotFound", "not found"),
        (Repo(FILES), "", "hf://org/none", "NotFound", "set HF_TOKEN"),
        (Repo(FILES), SECRET, "hf://org/tiny@v9", "RevisionNotFound", "'v9'"),
        (Repo(FILES), SECRET, "hf://org/tiny@" + "0" * 40, "RevisionNotFound", "0000"),
        (Repo({"pytorch_model.bin": b""}), SECRET, "hf://org/tiny", "PickleOnly", "never read"),
        (Repo({"README.md": b""}), SECRET, "hf://org/tiny", "NotAModel", "neither"),
        (Repo({"a.gguf": b"", "b.gguf": b""}), SECRET, "hf://org/tiny", "AmbiguousModel", "a.gguf, b.gguf"),
        (Repo({"a-00001-of-00002.gguf": b""}), SECRET, "hf://org/tiny", "UnsupportedFormat", "merge"),
        (Repo({"a.gguf": b""}), SECRET, "hf://org/tiny/b.gguf", "NotFound", "no file b.gguf"),
        (Repo({"a.bin": b""}), SECRET, "hf://org/tiny/a.bin", "PickleOnly", "never read"),
        (Repo(FILES), SECRET, "hf://org", "UnsupportedSource", "hf://ORG/NAME"),
        (Repo(FILES), SECRET, "hf://../..", "UnsupportedSource", "hf://ORG/NAME"),
        (Repo(FILES), SECRET, "hf://org/a--b", "UnsupportedSource", "not the name"),
    ],
)
def test_what_cannot_be_had_is_said_in_one_line(
    origin: FakeOrigin, repo: Repo, token: str, uri: str, code: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    origin.hub["org/tiny"] = repo
    with pytest.raises(StartupError) as caught:
        HubSource(origin.url, token or None).resolve(uri)
    assert (caught.value.code, isinstance(caught.value, OriginError)) == (code, False)
    assert words in caught.value.message
    assert "\n" not in caught.value.message
    assert not token or token not in caught.value.message
    assert len(origin.requests) <= 1, "it asked again"


@pytest.mark.parametrize(("token", "words"), [(None, "set HF_TOKEN"), ("other", "has not been granted")])
def test_a_gated_model_is_listed_and_its_files_say_that_access_is_not_granted(
    origin: FakeOrigin, token: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a store that has them all needs no grant."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    origin.hub["org/tiny"] = Repo(FILES, lfs=("model.safetensors",), gated=True, granted=("granted",))
    source = HubSource(origin.url, token)
    manifest = source.resolve("hf://org/tiny")
    for path in ("config.json", "model.safetensors"):
        origin.requests.clear()
        with pytest.raises(StartupError, match=words) as caught:
            read(source, manifest, path)
        assert (caught.value.code, len(origin.requests)) == ("Gated", 1)
    granted = HubSource(origin.url, SECRET)
    assert read(granted, granted.resolve("hf://org/tiny"), "model.safetensors") == WEIGHTS


NOW = 1_800_000_000


@pytest.mark.parametrize(
    ("status", "headers", "after_s"),
    [
        (429, {"Retry-After": "7"}, 7.0),
        (429, {"Retry-After": formatdate(NOW + 90, usegmt=True), "Date": formatdate(NOW, usegmt=True)}, 90.0),
        (429, {"RateLimit": '"api";r=0;t=55', "RateLimit-Policy": '"fixed window";"api";q=500;w=300'}, 55.0),
        (429, {}, None),
        (503, {"Retry-After": "3"}, 3.0),
        (503, {"Retry-After": "soon"}, None),
    ],
)
def test_a_busy_hub_says_for_how_long_and_is_asked_once(
    origin: FakeOrigin, status: int, headers: dict[str, str], after_s: float | None
) -> None:
    manifest = resolved(origin)
    origin.requests.clear()
    origin.order(Fault("/api/", times=9, status=status, headers=headers))
    busy = refusal(origin)
    assert isinstance(busy, OriginBusy)
    assert (busy.retry_after_s, len(origin.requests)) == (after_s, 1)
    origin.order(Fault("/resolve/", times=9, status=status, headers=headers))
    with pytest.raises(OriginBusy) as caught:
        read(HubSource(origin.url, SECRET), manifest, "config.json")
    assert (caught.value.retry_after_s, len(origin.requests)) == (after_s, 2)


@pytest.mark.parametrize("status", [500, 502, 504])
def test_a_hub_that_fails_may_work_later(origin: FakeOrigin, status: int) -> None:
    origin.order(Fault("/api/", times=9, status=status))
    error = refusal(origin)
    assert isinstance(error, OriginError)
    assert not isinstance(error, OriginBusy)
    assert len(origin.requests) == 1


@pytest.mark.parametrize("fault", [Fault("/api/", cut=20), Fault("/api/", stall=20), Fault("/api/", corrupt=True)])
def test_an_answer_that_does_not_come_whole_may_later(origin: FakeOrigin, fault: Fault) -> None:
    origin.order(fault)
    with pytest.raises(OriginError):
        HubSource(origin.url, SECRET, stall_s=0.2).resolve("hf://org/tiny")


@pytest.mark.parametrize(
    "wrong", [{"size": "7"}, {"rfilename": None}, {"lfs": {"sha256": 7, "size": 7}}, {"blobId": 7}]
)
def test_a_listing_that_makes_no_sense_is_one_line(origin: FakeOrigin, wrong: dict[str, Any]) -> None:
    origin.hub["org/tiny"].lies = {"tokenizer.json": wrong}
    error = refusal(origin)
    assert isinstance(error, OriginError)
    assert "makes no sense" in error.message


def test_without_a_network_it_may_work_later(origin: FakeOrigin, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with pytest.raises(OriginError, match="cannot be reached"):
        HubSource(f"http://127.0.0.1:{port}", SECRET).resolve("hf://org/tiny")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert refusal(origin).code == "Offline"
    assert not origin.requests


def test_a_moved_branch_is_another_revision_and_a_commit_stays(origin: FakeOrigin) -> None:
    source = HubSource(origin.url, SECRET)
    before = source.resolve("hf://org/tiny")
    origin.hub["org/tiny"] = Repo({**FILES, "model.safetensors": WEIGHTS[::-1]}, lfs=("model.safetensors",))
    after = source.resolve("hf://org/tiny")
    assert after.revision != before.revision
    assert after.files != before.files


def test_a_file_of_another_length_is_noticed_before_it_is_read(origin: FakeOrigin) -> None:
    source = HubSource(origin.url, SECRET)
    manifest = source.resolve("hf://org/tiny")
    origin.order(Fault("/resolve/", status=302, headers={"Location": f"{origin.url}/longer"}))
    origin.web["longer"] = WebFile(WEIGHTS + b"x")
    with pytest.raises(OriginChanged, match="bytes"):
        read(source, manifest, "model.safetensors", 0, 100)


@pytest.mark.parametrize("spelled", ["{}", "{}/", "./my model", "./my model/", "my model"])
def test_a_local_path_is_never_asked_of_the_hub(
    origin: FakeOrigin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelled: str
) -> None:
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "my model"
    write_llama(model)
    spec = materialized(origin, tmp_path, spelled.format(model))
    assert (spec.name, Path(spec.path)) == ("my model", model)
    assert not origin.requests


@pytest.mark.parametrize(
    ("model", "code", "num_asked"),
    [
        ("/no/model", "PathNotFound", 0),
        ("./org/none", "PathNotFound", 0),
        ("none", "PathNotFound", 0),
        ("org/none", "NotFound", 1),
    ],
)
def test_a_path_that_is_not_there_is_one(
    origin: FakeOrigin, tmp_path: Path, model: str, code: str, num_asked: int
) -> None:
    with pytest.raises(StartupError) as caught:
        materialized(origin, tmp_path, model)
    assert (caught.value.code, len(origin.requests)) == (code, num_asked)


def materialized(origin: FakeOrigin, tmp_path: Path, model: str) -> ModelSpec:
    sources: dict[str, AnySource] = {"file": DirectorySource(), "hf": HubSource(origin.url, SECRET)}
    return materialize(model, store=Store(tmp_path / "store"), sources=sources, report=lambda _: None)


@pytest.mark.parametrize(
    ("uri", "model", "pinned"),
    [
        ("hf://org/name", HubModel("org/name", None, None), False),
        ("hf://org/name/", HubModel("org/name", None, None), False),
        ("hf://org/na.me-1_0@v1.0", HubModel("org/na.me-1_0", "v1.0", None), False),
        ("hf://org/name@refs/pr/7", HubModel("org/name", "refs/pr/7", None), False),
        ("hf://org/name@refs/pr/7/x.gguf", HubModel("org/name", "refs/pr/7", "x.gguf"), False),
        ("hf://org/name@a%2Fb/x.gguf", HubModel("org/name", "a/b", "x.gguf"), False),
        ("hf://org/name@" + "a" * 40, HubModel("org/name", "a" * 40, None), True),
        ("hf://org/name@" + "a" * 39, HubModel("org/name", "a" * 39, None), False),
        ("hf://org/name/Q4/x y.gguf", HubModel("org/name", None, "Q4/x y.gguf"), False),
    ],
)
def test_uris(uri: str, model: HubModel, pinned: bool) -> None:
    assert HubModel.read(uri) == model
    assert HubSource().pinned(uri) is pinned


@pytest.mark.parametrize(
    ("files", "uri", "chosen"),
    [
        (["x.Q4_0.gguf", "README.md", "mmproj.gguf"], "hf://org/tiny", ["x.Q4_0.gguf"]),
        (["a.gguf", "b.gguf"], "hf://org/tiny/b.gguf", ["b.gguf"]),
        (["Q4/a.gguf", "Q8/a.gguf"], "hf://org/tiny/Q8/a.gguf", ["Q8/a.gguf"]),
        (["a.gguf", "config.json", "model.safetensors"], "hf://org/tiny/a.gguf", ["a.gguf"]),
        (
            ["config.json", "model.safetensors", "other.safetensors", "model-00001-of-00002.safetensors"],
            "hf://org/tiny",
            ["config.json", "model.safetensors"],
        ),
        (
            ["config.json", "one.safetensors", "two.safetensors", "tokenizer.model", "merges.txt", "notes.txt"],
            "hf://org/tiny/two.safetensors",
            ["config.json", "merges.txt", "tokenizer.model", "two.safetensors"],
        ),
        (
            [
                "config.json",
                "consolidated-00001-of-00001.safetensors",
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
                "model.safetensors.index.json",
                "extra.safetensors",
            ],
            "hf://org/tiny",
            [
                "config.json",
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
                "model.safetensors.index.json",
            ],
        ),
        (["config.json", "consolidated.safetensors"], "hf://org/tiny", ["config.json", "consolidated.safetensors"]),
    ],
)
def test_one_copy_of_the_weights_is_taken(origin: FakeOrigin, files: list[str], uri: str, chosen: list[str]) -> None:
    origin.hub["org/tiny"] = Repo(dict.fromkeys(files, b"x"))
    assert [entry.path for entry in resolved(origin, uri).files] == chosen


ASKING = """
import sys
from tickertape.plugins.sources.hf import HubSource
source = HubSource()
manifest = source.resolve("hf://org/tiny")
origin = source.open(manifest)
assert sum(len(piece) for piece in origin.read(manifest.files[0], 0, None)) == manifest.files[0].size_bytes
origin.close()
"""


def test_the_hub_hears_nothing_but_what_is_wanted(origin: FakeOrigin, tmp_path: Path) -> None:
    """In a process of its own: the library looks at its environment once, and asks some things once a day."""
    environment = {name: value for name, value in os.environ.items() if "TELEMETRY" not in name}
    environment |= {"HF_ENDPOINT": origin.url, "HF_HOME": str(tmp_path), "AI_AGENT": "robot"}
    subprocess.run([sys.executable, "-c", ASKING], env=environment, check=True, timeout=60)
    assert [seen.path.partition("/resolve/")[0] for seen in origin.requests] == ["/api/models/org/tiny", "/org/tiny"]
    for seen in origin.requests:
        named = [part.partition("/")[0] for part in seen.headers["user-agent"].split("; ")]
        assert named == ["tickertape", "hf_hub", "python"]
    assert f"tickertape/{tickertape.__version__}" in origin.requests[0].headers["user-agent"]
