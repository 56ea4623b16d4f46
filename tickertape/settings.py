"""Every setting of the server, declared once: name, type, default, help. Flags, environment names (`TICKERTAPE_` + the
name) and keys of the TOML file derive from the fields. Flag over environment over file over default.

The only module that reads the environment. Nothing below the front door sees `Settings`: it is taken apart into the
small records that the rooms define.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ByteSize, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from tickertape.key_values import key_values
from tickertape.model_choice import ModelChoice
from tickertape.setting_faults import worded

__all__ = ["ENV_PREFIX", "Settings", "SettingsError", "load_settings"]

ENV_PREFIX = "TICKERTAPE_"

_LAST_WORDS = Path("/dev/termination-log")
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")
_ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(:\d+)?")  # as browsers spell it, in lower case
_PEER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")
_SERVICE_LINK = re.compile(r"(tcp|udp)://")

S = TypeVar("S", bound=BaseSettings)


class SettingsError(Exception):
    """A setting has a value that it must not have, or is unknown. `lines` holds one sentence per fault, each naming
    the flag, the environment variable or the file that is to blame."""

    def __init__(self, lines: tuple[str, ...]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def setting(default: Any, help: str, group: str, **limits: Any) -> Any:
    """Declares a field. `group` is the heading it stands under in --help."""
    return Field(default, description=help, json_schema_extra={"group": group}, **limits)


class Settings(BaseSettings):
    """See `tickertape serve --help`. Frozen: read once, when the process starts."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True)

    models: Annotated[tuple[str, ...], NoDecode] = setting(
        (), "Models to serve: a directory or a URI, as MODEL or NAME=MODEL.", "Model"
    )
    backend: str | None = setting(None, "Backend to use. [default: the first that takes the model]", "Model")
    dtype: Literal["auto", "float64", "float32", "bfloat16", "float16"] = setting(
        "auto", "Type to compute in.", "Model"
    )
    device: str = setting("cpu", "Device to compute on: cpu, cuda or cuda:N.", "Model")
    quantization: Literal["none", "int8", "int4"] = setting("none", "Quantization of the weights.", "Model")
    threads: int = setting(0, "Threads of a worker; 0: the backend decides.", "Model", ge=0)
    backend_option: Annotated[dict[str, Any], NoDecode] = setting(
        {}, "A setting of the backend's own; may be repeated. The file has a table of them.", "Model", repr=False
    )
    store: Path = setting(Path("~/.cache/tickertape"), "Directory that keeps downloaded and converted models.", "Model")

    fetch_patience_s: float = setting(
        600.0, "Seconds a fetch may get no byte (origin down or busy, no space) before it gives up.", "Weights", gt=0
    )
    origin_connections: int = setting(8, "Connections to an origin of weights.", "Weights", ge=1, le=64)
    max_origin_mbps: float | None = setting(None, "Most megabits a second from origins.", "Weights", gt=0)
    origin_slots: str | None = setting(
        None,
        "Who may read from origins at once: kubernetes[:NAMESPACE/PREFIX] for Leases, or a shared directory.",
        "Weights",
    )
    num_origin_slots: int = setting(2, "How many may, of all that share the slots.", "Weights", ge=1, le=64)
    peers: Annotated[tuple[str, ...], NoDecode] = setting(
        (), "HOST:PORT of servers to get weights from first; a name stands for all its addresses.", "Weights"
    )
    peer_port: int | None = setting(
        None, "Port to serve weights to peers on; 0: any free one. [default: none]", "Weights", ge=0, le=65535
    )
    peer_token: SecretStr | None = setting(None, "Token that peers must show each other.", "Weights")
    peer_uploads: int = setting(4, "Most uploads to peers at once.", "Weights", ge=1, le=256)
    peer_upload_mbps: float | None = setting(None, "Most megabits a second to peers.", "Weights", gt=0)
    store_high_bytes: ByteSize | None = setting(
        None, "Size of the store from which what is not in use is removed, least recently used first.", "Weights"
    )
    store_low_bytes: ByteSize | None = setting(
        None, "Size it is brought down to. [default: nine tenths of that]", "Weights"
    )
    store_reserve_bytes: ByteSize = setting(
        ByteSize(1 << 30), "Space that a fetch leaves free on the store's file system.", "Weights"
    )

    generation_config: Literal["auto", "none"] = setting(
        "auto", "Whether the model's generation_config.json says how to decode where a request does not.", "Model"
    )
    default_temperature: float | None = setting(
        None, "Temperature where a request gives none; wins over the model's.", "Model", ge=0, le=2
    )
    default_top_p: float | None = setting(None, "As much for top_p.", "Model", gt=0, le=1)
    default_top_k: int | None = setting(None, "As much for top_k; 0: off.", "Model", ge=0)
    default_min_p: float | None = setting(None, "As much for min_p.", "Model", ge=0, le=1)
    default_repetition_penalty: float | None = setting(
        None, "As much for repetition_penalty.", "Model", ge=0.01, le=100
    )
    default_max_tokens: int | None = setting(
        None, "As much for max_tokens, of chats and completions, as far as the context goes.", "Model", ge=1
    )
    trust_remote_code: bool = setting(False, "Run Python code that comes with the models.", "Model")

    host: str = setting("127.0.0.1", "Address to listen on.", "Listening")
    port: int = setting(8000, "Port to listen on; 0: any free one.", "Listening", ge=0, le=65535)
    grpc: bool = setting(True, "Serve gRPC too.", "Listening")
    grpc_port: int | None = setting(
        None,
        "Port of gRPC; 0: any free one. [default: the port after --port, any free one after 0]",
        "Listening",
        ge=0,
        le=65535,
    )
    http_keep_alive_s: float = setting(
        75.0, "Seconds an idle connection is kept. Keep it above your proxy's.", "Listening", gt=0
    )
    api_key: SecretStr | None = setting(
        None, "Key that clients must send; several are separated by commas.", "Listening"
    )
    api_keys: Path | None = setting(
        None, "File of such keys, one a line, plain or as sha256:HEX. Read again when it changes.", "Listening"
    )
    tls_cert: Path | None = setting(None, "PEM file of the certificate chain. Read again when it changes.", "Listening")
    tls_key: Path | None = setting(None, "PEM file of its private key.", "Listening")
    tls_client_ca: Path | None = setting(
        None, "PEM file of authorities; clients must show a certificate of theirs.", "Listening"
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = setting(
        (), "Origins whose web pages may call, as https://chat.example, separated by commas; * for all.", "Listening"
    )
    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = setting(
        (), "Networks, as 10.0.0.0/8, of proxies whose X-Forwarded-For and -Proto are believed.", "Listening"
    )
    max_header_bytes: ByteSize = setting(
        ByteSize(64 << 10), "Largest head of a request, its headers together.", "Listening", ge=1024
    )
    max_headers: int = setting(128, "Most headers of a request.", "Listening", ge=8)
    lenient: bool = setting(False, "Serve requests with fields that cannot be honoured; say so in a header.", "Wire")
    chat_template: Path | None = setting(None, "File of a chat template to use for the model's own.", "Wire")
    trust_request_chat_template: bool = setting(
        False, "Take chat templates from requests; each is rendered in a bounded process.", "Wire"
    )
    reasoning_parser: str = setting(
        "auto", "Parser that tells reasoning from the answer, or none. [default: by the model's template]", "Wire"
    )
    tool_parser: str = setting(
        "auto", "Parser that finds tool calls, or none. [default: by the model's template]", "Wire"
    )
    sse_keep_alive_s: float = setting(15.0, "Seconds of silence before a stream's keep-alive comment.", "Wire", gt=0)
    sse_head_delay_s: float = setting(
        0.5, "Seconds a stream's status waits for the first token, so that faults until then have one.", "Wire", ge=0
    )
    sse_send_timeout_s: float = setting(
        30.0, "Seconds a client may take nothing before it counts as gone.", "Wire", gt=0
    )
    max_body_bytes: ByteSize = setting(ByteSize(8 << 20), "Largest request body, as 8MiB.", "Wire", ge=1024)
    grpc_max_message_bytes: ByteSize = setting(
        ByteSize(8 << 20), "Largest request message of gRPC, as 8MiB.", "Wire", ge=1024, le=2**31 - 1
    )
    max_json_depth: int = setting(64, "Deepest nesting of a body.", "Wire", ge=4, le=512)
    max_choices: int = setting(128, "Most choices of one request: prompts x max(n, best_of).", "Wire", ge=1)
    max_stop_strings: int = setting(16, "Most stop strings of one request.", "Wire", ge=1)
    max_logprob_values: int = setting(
        2_000_000, "Most log probabilities of one answer: (1 + top) x tokens x choices.", "Wire", ge=1
    )
    max_prompt_logprob_values: int = setting(200_000, "As many of its prompts.", "Wire", ge=1)
    default_completion_tokens: int = setting(16, "max_tokens of a completion that names none.", "Wire", ge=1)
    resume_window_s: float = setting(
        30.0, "Seconds a resumable stream goes on without its reader; 0: none is resumable.", "Wire", ge=0
    )
    resume_buffer_bytes: ByteSize = setting(
        ByteSize(256 << 10),
        "What is kept of each for readers who come back; as much again of what none has read.",
        "Wire",
        ge=1024,
    )
    max_resumable_streams: int = setting(256, "Most resumable streams.", "Wire", ge=1)
    request_timeout_s: float | None = setting(None, "Longest wait for a first token. [default: no bound]", "Wire", gt=0)

    max_waiting: int = setting(2048, "Most requests that wait for their first token.", "Scheduling", ge=1)
    max_model_len: int | None = setting(
        None, "Most tokens of one sequence, prompt and answer. [default: the model's]", "Scheduling", ge=2
    )
    max_num_seqs: int = setting(64, "Most sequences computed at once.", "Scheduling", ge=1, le=4096)
    max_batch_tokens: int = setting(1024, "Most tokens computed in one step.", "Scheduling", ge=1)
    block_size: int = setting(16, "Tokens of one KV block.", "Scheduling", ge=1, le=4096)
    kv_blocks: int | None = setting(None, "KV blocks per cache group.", "Scheduling", ge=2)
    kv_cache_bytes: ByteSize | None = setting(
        None, "Memory of the KV blocks, as 2GiB. [default: half of what is free, shared by the models]", "Scheduling"
    )
    policy: Literal["arrival", "priority", "fair"] = setting("arrival", "Order of the waiting queue.", "Scheduling")

    plugins_dir: Path | None = setting(None, "Directory of single-file plugins to load too.", "Plugins")
    plugins_allow: Annotated[tuple[str, ...] | None, NoDecode] = setting(
        None, "Load these plugins only, separated by commas.", "Plugins"
    )
    plugins_block: Annotated[tuple[str, ...], NoDecode] = setting(
        (), "Plugins not to load, separated by commas.", "Plugins"
    )
    auth_plugins: Annotated[tuple[str, ...], NoDecode] = setting(
        (), "Plugins that must authenticate; without them the server does not start.", "Plugins"
    )
    route_plugins: Annotated[tuple[str, ...], NoDecode] = setting(
        (), "Plugins that may serve HTTP routes, under /plugins/NAME.", "Plugins"
    )
    strict_plugins: bool = setting(False, "Refuse to start when a plugin is broken.", "Plugins")

    in_process: bool = setting(False, "Run the engine in the front: no worker, no restart.", "Process")
    worker_patience_s: float = setting(
        180.0,
        "Seconds a worker with open requests may make no step before it counts as stalled, is killed and replaced. Keep"
        " it above the longest step: --max-batch-tokens of a prompt.",
        "Process",
        gt=0,
    )
    grace_s: float = setting(30.0, "Seconds running streams get to finish after SIGTERM.", "Process", ge=0)
    startup_linger_s: float = setting(
        2.0, "Seconds /readyz shows why the server could not start or go on before it exits; inf: until it is stopped.",
        "Process", ge=0,
    )  # fmt: skip
    termination_log: Path | None = setting(
        None, "File to write that reason to. [default: /dev/termination-log in Kubernetes, else none]", "Process"
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "Least level that is logged.", "Process")
    config: Path | None = setting(None, "TOML file of settings, its keys are these flags with _ for -.", "Process")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        flags, environment = init_settings(), _without_service_links(env_settings())
        config = flags.get("config") or environment.get("config")
        return (
            init_settings,
            InitSettingsSource(settings_cls, init_kwargs=environment),
            InitSettingsSource(settings_cls, init_kwargs=_read_toml(Path(config)) if config else {}),
        )

    @field_validator(
        "models", "plugins_allow", "plugins_block", "auth_plugins", "route_plugins", "cors_origins", "trusted_proxies",
        "peers", mode="before",
    )  # fmt: skip
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(part for part in re.split(r"[,\s]+", value) if part) if isinstance(value, str) else value

    @field_validator("backend_option", mode="before")
    @classmethod
    def _table(cls, value: Any) -> Any:
        return key_values(value)

    @field_validator(
        "store", "plugins_dir", "chat_template", "api_keys", "tls_cert", "tls_key", "tls_client_ca", "termination_log"
    )
    @classmethod
    def _expand(cls, value: Path | None) -> Path | None:
        return value.expanduser().absolute() if value is not None else None

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if not _DEVICE.fullmatch(value):
            raise ValueError("must be cpu, cuda or cuda:N")
        return value

    @field_validator("cors_origins")
    @classmethod
    def _known_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is no origin; write https://host or http://host:port, without a path")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _known_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(ip_network(network, strict=False)) for network in value)

    @field_validator("peers")
    @classmethod
    def _known_peers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for peer in value:
            if not _PEER.fullmatch(peer):
                raise ValueError(f"{peer!r} is not HOST:PORT")
        return value

    @field_validator("api_key", "peer_token")
    @classmethod
    def _some_key(cls, value: SecretStr | None) -> SecretStr | None:
        # An empty variable must not mean a server that an empty key opens.
        if value is not None and not all(part.strip() for part in value.get_secret_value().split(",")):
            raise ValueError("a key is empty")
        return value

    @model_validator(mode="after")
    def _agree(self) -> Settings:
        if self.kv_blocks is not None and self.kv_cache_bytes is not None:
            raise ValueError("kv_blocks and kv_cache_bytes exclude each other")
        if self.api_key is not None and self.api_keys is not None:
            raise ValueError("api_key and api_keys exclude each other")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together")
        if self.store_low_bytes is not None and self.store_low_bytes > (self.store_high_bytes or -1):
            raise ValueError("store_low_bytes is at most store_high_bytes")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca needs tls_cert and tls_key")
        names = [choice.name for choice in self.model_choices() if choice.name]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two models are named {name!r}")
        return self

    @property
    def chosen_grpc_port(self) -> int | None:
        """None: no gRPC."""
        if not self.grpc:
            return None
        if self.grpc_port is not None:
            return self.grpc_port
        return self.port + 1 if 0 < self.port < 65535 else 0

    @property
    def chosen_termination_log(self) -> Path | None:
        """Kubernetes shows what stands in its file as the container's last state."""
        if self.termination_log is None and "KUBERNETES_SERVICE_HOST" in os.environ and _LAST_WORDS.exists():
            return _LAST_WORDS
        return self.termination_log

    def model_choices(self) -> tuple[ModelChoice, ...]:
        """The models in the order given; none: the caller's default."""
        return tuple(ModelChoice.of(text) for text in self.models)


def _without_service_links(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Kubernetes gives every pod TICKERTAPE_PORT=tcp://10.0.0.1:8000 when a Service is called tickertape. It is not
    our setting."""
    return {k: v for k, v in environment.items() if not (k == "port" and _SERVICE_LINK.match(str(v)))}


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise SettingsError((f"{path}: {(error.strerror or str(error)).lower()}",)) from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError((f"{path}: not TOML: {error}",)) from error


def load_settings(of: type[S], flags: Mapping[str, Any]) -> S:
    """The settings of this process. `flags` holds what the command line gave. Raises SettingsError."""
    try:
        return of(**flags)
    except ValidationError as error:
        given = {name for name in of.model_fields if f"{ENV_PREFIX}{name.upper()}" in os.environ}
        config = flags.get("config") or os.environ.get(f"{ENV_PREFIX}CONFIG")
        raise SettingsError(worded(error, flags, given, ENV_PREFIX, str(config))) from error
