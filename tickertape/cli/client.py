"""What the commands that talk to a server share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click
import httpx
from pydantic import SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from tickertape.cli.options import refuse
from tickertape.settings import ENV_PREFIX, SettingsError, load_settings, setting

__all__ = ["ClientSettings", "connect", "load_client_settings", "served_models", "stop_with"]


class ClientSettings(BaseSettings):
    """How to reach a server."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="forbid")

    url: str = setting("http://127.0.0.1:8000", "Where the server is.", "Server")
    api_key: SecretStr | None = setting(None, "Key to send.", "Server")

    @field_validator("url")
    @classmethod
    def _with_scheme(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        return url.rstrip("/").removesuffix("/v1").rstrip("/")  # as other clients want it


def load_client_settings(flags: dict[str, Any]) -> ClientSettings:
    """Ends the process when they are wrong."""
    try:
        return load_settings(ClientSettings, flags)
    except SettingsError as error:
        refuse(error)


@contextmanager
def connect(settings: ClientSettings) -> Iterator[httpx.Client]:
    """A client of the server. Errors of the connection end the process with one line."""
    key = settings.api_key
    # As bytes: the server compares UTF-8, and httpx would want ASCII of a text.
    headers = {b"authorization": b"Bearer " + key.get_secret_value().encode("utf-8", "surrogateescape")} if key else {}
    # A first token may take its time; a server that is not there must not.
    timeout = httpx.Timeout(None, connect=5.0)
    with httpx.Client(base_url=settings.url, headers=headers, timeout=timeout) as client:
        try:
            yield client
        except httpx.ConnectError:
            stop_with(f"no server answers at {settings.url}; start one with: tickertape serve")
        except httpx.HTTPError as error:
            stop_with(f"the connection to {settings.url} failed: {error or type(error).__name__}")


def served_models(client: httpx.Client) -> list[str]:
    """Names of the models. Ends the process when the server refuses."""
    response = client.get("/v1/models")
    if response.status_code != 200:
        stop_with(error_text(response.status_code, response.content))
    return [model["id"] for model in response.json()["data"]]


def error_text(status: int, body: bytes) -> str:
    """The server's own words."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered with status {status}"


def stop_with(message: str) -> NoReturn:
    click.echo(f"tickertape: {message}", err=True)
    raise SystemExit(1)
