"""Where settings come from, which source wins, and what is said about a wrong one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from tickertape.__main__ import main
from tickertape.key_file import read_keys
from tickertape.model_choice import ModelChoice
from tickertape.pieces import wire_options
from tickertape.settings import Settings, SettingsError, load_settings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in os.environ:
        if name.startswith("TICKERTAPE_"):
            monkeypatch.delenv(name)


def load(**flags: Any) -> Settings:
    return load_settings(Settings, flags)


def test_flag_wins_over_environment_over_file_over_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert load().port == 8000
    file = tmp_path / "server.toml"
    file.write_text('port = 1\nblock_size = 32\nmodels = ["a=/x", "b=/y"]\nlenient = true\n')
    assert load(config=file).port == 1
    monkeypatch.setenv("TICKERTAPE_PORT", "2")
    assert load(config=file).port == 2
    assert load(config=file, port="3").port == 3
    settings = load(config=file)
    assert (settings.block_size, settings.lenient) == (32, True)
    assert settings.model_choices() == (ModelChoice("a", "/x"), ModelChoice("b", "/y"))
    assert load(config=file, lenient=False).lenient is False


def test_the_file_itself_may_be_named_by_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text("grace_s = 4\n")
    monkeypatch.setenv("TICKERTAPE_CONFIG", str(tmp_path / "server.toml"))
    assert load().grace_s == 4.0


@pytest.mark.parametrize(("text", "num_bytes"), [("2GiB", 2 << 30), ("1.5GB", 1_500_000_000), ("4096", 4096)])
def test_sizes_have_units(text: str, num_bytes: int) -> None:
    assert load(kv_cache_bytes=text).kv_cache_bytes == num_bytes


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("/models/a", ModelChoice(None, "/models/a")),
        ("a=/models/a", ModelChoice("a", "/models/a")),
        ("org/a=b=c", ModelChoice("org/a", "b=c")),
        ("./odd=name", ModelChoice(None, "./odd=name")),
        ("wheel://pkg/file?x=1", ModelChoice(None, "wheel://pkg/file?x=1")),
        ("a=", ModelChoice(None, "a=")),
    ],
)
def test_models_may_be_named(text: str, choice: ModelChoice) -> None:
    assert load(models=(text,)).model_choices() == (choice,)


def test_lists_in_the_environment_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKERTAPE_MODELS", "/a, b=/b")
    monkeypatch.setenv("TICKERTAPE_PLUGINS_BLOCK", "x,y")
    settings = load()
    assert settings.models == ("/a", "b=/b")
    assert settings.plugins_block == ("x", "y")


def test_a_service_named_tickertape_does_not_set_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKERTAPE_PORT", "tcp://10.0.0.1:80")
    assert load().port == 8000


def test_faults_name_their_origin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('prot = 80\ngrace_s = "soon"\n')
    monkeypatch.setenv("TICKERTAPE_BLOCK_SIZE", "many")
    with pytest.raises(SettingsError) as caught:
        load(config=file, port="99999")
    lines = sorted(caught.value.lines)
    assert lines == [
        "--port: should be less than or equal to 65535",
        f"{file}: grace_s: should be a valid number, unable to parse string as a number",
        f"{file}: prot: no such setting",
        "TICKERTAPE_BLOCK_SIZE: should be a valid integer, unable to parse string as an integer",
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"kv_blocks": 9, "kv_cache_bytes": "1GiB"}, "kv_blocks and kv_cache_bytes exclude each other"),
        ({"models": ("a=/x", "a=/y")}, "two models are named 'a'"),
        ({"config": "/no/such.toml"}, "/no/such.toml: no such file or directory"),
        ({"device": "tpu"}, "--device: must be cpu, cuda or cuda:N"),
        ({"api_key": ""}, "--api-key: a key is empty"),
        ({"api_key": "a,,b"}, "--api-key: a key is empty"),
        ({"tls_cert": "/a"}, "tls_cert and tls_key belong together"),
        ({"tls_client_ca": "/a"}, "tls_client_ca needs tls_cert and tls_key"),
        ({"trusted_proxies": "10.0.0.0/33"}, "--trusted-proxies: .*10.0.0.0/33"),
        ({"trusted_proxies": "proxy.example"}, "--trusted-proxies: .*proxy.example"),
        ({"cors_origins": "chat.example"}, "--cors-origins: 'chat.example' is no origin"),
        ({"cors_origins": "https://chat.example/"}, "--cors-origins: .* without a path"),
    ],
)
def test_contradictions_are_refused(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(**flags)


def test_a_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("port 80")
    with pytest.raises(SettingsError, match="not TOML"):
        load(config=tmp_path / "x.toml")


def test_networks_are_networks_whatever_address_of_them_is_named() -> None:
    settings = load(trusted_proxies="10.1.2.3/8, 192.0.2.1 2001:db8::1/32")
    assert settings.trusted_proxies == ("10.0.0.0/8", "192.0.2.1/32", "2001:db8::/32")
    options = wire_options(settings)
    assert "::ffff:10.0.0.0/104" in options.trusted_proxies  # as a socket of both families sees such a peer


@pytest.mark.parametrize(("keys", "read"), [("a", ("a",)), ("a, b", ("a", "b"))])
def test_several_keys_may_be_given(keys: str, read: tuple[str, ...]) -> None:
    assert read_keys(load(api_key=keys)) == read


def test_settings_do_not_change_and_keys_do_not_show() -> None:
    settings = load(api_key="secret-key")
    assert "secret-key" not in repr(settings)
    with pytest.raises(ValidationError):
        settings.port = 1


def test_the_help_says_seconds_of_seconds_alone() -> None:
    shown = CliRunner().invoke(main, ["serve", "--help"]).stdout
    words = dict(re.findall(r"^  (--[\w-]+) (SECONDS|NUMBER)", shown, re.MULTILINE))
    assert words["--default-temperature"] == "NUMBER"
    assert {name for name, word in words.items() if word == "SECONDS"} == {
        name for name in words if name.endswith("-s")
    }


def test_every_field_has_help_and_a_group() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert isinstance(field.json_schema_extra, dict), name
