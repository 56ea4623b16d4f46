"""A secret in a URI is used, and neither kept nor told."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from tests.plugins.fake_origin import FakeOrigin, WebFile
from tests.weights.conftest import CONFIG, safetensors_bytes
from tickertape.core.backend import ModelSpec
from tickertape.plugins.sources.https import HttpsSource
from tickertape.testing.tokenizers import byte_level_tokenizer
from tickertape.weights.materialize import materialize
from tickertape.weights.store import Store
from tickertape.weights.uris import public

FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": byte_level_tokenizer().to_str().encode(),
    "tiny.safetensors": safetensors_bytes({"a": np.arange(6, dtype=np.float32)}),
}


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("https://me:secret@host.example:8443/m/x.gguf?sig=secret#sha256=ab", "https://host.example:8443/m/x.gguf#sha256=ab"),
        ("https://host.example/m/x.gguf", "https://host.example/m/x.gguf"),
        ("hf://org/name@main", "hf://org/name@main"),
        ("wheel://pkg==1.0/a/b.gguf", "wheel://pkg==1.0/a/b.gguf"),
        ("file:///a/b?c", "file:///a/b?c"),
        ("https://me:secret@[::1/x", "https://..."),
    ],
)  # fmt: skip
def test_what_is_shown(uri: str, shown: str) -> None:
    assert public(uri) == shown


def test_a_password_and_a_signature_are_used_and_not_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tickertape")
    with FakeOrigin() as origin:
        origin.web.update({f"m/{path}": WebFile(data) for path, data in FILES.items()})
        host = origin.url.removeprefix("http://")
        uri = f"http://me:hunter2@{host}/m/tiny.safetensors?sig=hunter2"
        first = fetch(uri, tmp_path)
        num_requests = len(origin.requests)
        origin.web.clear()
        assert fetch(uri, tmp_path) == first  # from the store, though its origin has lost it
        assert len(origin.requests) > num_requests
    assert {path.read_bytes().count(b"hunter2") for path in tmp_path.rglob("*") if path.is_file()} == {0}
    assert "hunter2" not in caplog.text


def fetch(uri: str, root: Path) -> ModelSpec:
    return materialize(uri, store=Store(root), sources={"http": HttpsSource()}, report=lambda _: None)
