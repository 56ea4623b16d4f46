"""Settings that are tables: the backend's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tickertape.core.backend import Backend, Capabilities, ModelSpec
from tickertape.pieces import configure_message
from tickertape.settings import Settings, SettingsError, load_settings

SPEC = ModelSpec(name="m", path="/m", architecture="A", config={}, max_model_len=64, vocab_size=8)
BACKEND = Backend(name="mine", kind="engine", factory="mine:make", capabilities=Capabilities())


def extra(**flags: Any) -> Any:
    settings = load_settings(Settings, flags)
    return configure_message(settings, SPEC, BACKEND, num_models=1).options.extra


def test_flags_reach_the_backend_as_what_they_say() -> None:
    flags = ("url=http://127.0.0.1:1/x=y", "trust=true", "num=3", 'names={"a": [1]}', "empty=")
    assert extra(backend_option=flags) == {
        "url": "http://127.0.0.1:1/x=y",
        "trust": True,
        "num": 3,
        "names": {"a": [1]},
        "empty": "",
    }
    assert extra() == {}


def test_the_environment_has_pairs_or_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKERTAPE_BACKEND_OPTION", "a=1 b=x,y")
    assert extra() == {"a": 1, "b": "x,y"}
    monkeypatch.setenv("TICKERTAPE_BACKEND_OPTION", '{"a": {"b c": 2}}')
    assert extra() == {"a": {"b c": 2}}


def test_the_file_has_a_table_and_a_flag_replaces_it(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('[backend_option]\nurl = "http://h"\nmax = 2\n')
    assert extra(config=file) == {"url": "http://h", "max": 2}
    assert extra(config=file, backend_option=("url=http://g",)) == {"url": "http://g"}


def test_what_is_no_pair_is_refused_with_the_flag() -> None:
    with pytest.raises(SettingsError, match="--backend-option: 'fast' is not KEY=VALUE"):
        extra(backend_option=("fast",))


def test_options_do_not_show() -> None:
    assert "hunter2" not in repr(load_settings(Settings, {"backend_option": ("api_key=hunter2",)}))
