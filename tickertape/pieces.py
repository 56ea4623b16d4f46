"""Takes the settings apart into the records that the rooms below understand."""

from __future__ import annotations

import hashlib
from ipaddress import IPv4Network, ip_network
from pathlib import Path
from typing import Any

import msgspec

from tickertape import __version__
from tickertape.api.admission import AdmissionLimits
from tickertape.api.generation_defaults import GenerationDefaults
from tickertape.api.grpc.options import GrpcOptions
from tickertape.api.kept_streams import ResumeLimits
from tickertape.api.limits import CallLimits
from tickertape.api.options import WireOptions
from tickertape.core.backend import Backend, BackendOptions, ModelSpec
from tickertape.core.errors import StartupError
from tickertape.core.memory import Limits
from tickertape.core.messages import Configure, Fetch, FetchOptions
from tickertape.http_protocol import HeadLimits
from tickertape.settings import Settings

__all__ = [
    "admission_limits",
    "backend_options",
    "call_limits",
    "configure_message",
    "fetch_message",
    "fetch_options",
    "fingerprint",
    "generation_defaults",
    "grpc_options",
    "head_limits",
    "plugin_settings",
    "resume_limits",
    "wire_options",
]

_MEMORY_SHARE = 0.5


def plugin_settings(settings: Settings) -> dict[str, Any]:
    """Keyword arguments of `Plugins.load`, as plain data."""
    return {
        "allow": settings.plugins_allow,
        "block": settings.plugins_block,
        "directory": str(settings.plugins_dir) if settings.plugins_dir else None,
        "strict": settings.strict_plugins,
    }


def fetch_message(settings: Settings) -> Fetch:
    return Fetch(
        models=tuple((choice.name, choice.model) for choice in settings.model_choices()) or ((None, None),),
        store=str(settings.store),
        backend=settings.backend,
        compute=backend_options(settings),
        trust_remote_code=settings.trust_remote_code,
        options=fetch_options(settings),
        plugins=plugin_settings(settings),
        log_level=settings.log_level,
    )


def backend_options(settings: Settings) -> BackendOptions:
    return BackendOptions(
        dtype=settings.dtype,
        device=settings.device,
        quantization=settings.quantization,
        num_threads=settings.threads,
        extra=settings.backend_option,
    )


def fetch_options(settings: Settings) -> FetchOptions:
    token = settings.peer_token
    high, low = settings.store_high_bytes, settings.store_low_bytes
    return FetchOptions(
        origin_connections=settings.origin_connections,
        max_origin_mbps=settings.max_origin_mbps,
        fetch_patience_s=settings.fetch_patience_s,
        origin_slots=settings.origin_slots,
        num_origin_slots=settings.num_origin_slots,
        peers=settings.peers,
        peer_host=settings.host,
        peer_port=settings.peer_port,
        peer_token=None if token is None else token.get_secret_value(),
        peer_uploads=settings.peer_uploads,
        peer_upload_mbps=settings.peer_upload_mbps,
        store_high_bytes=None if high is None else int(high),
        store_low_bytes=None if low is None else int(low),
        store_reserve_bytes=int(settings.store_reserve_bytes),
    )


def configure_message(settings: Settings, spec: ModelSpec, backend: Backend, *, num_models: int) -> Configure:
    """What a worker needs to serve `spec`. Raises StartupError when the settings ask for what the model has not."""
    max_model_len = settings.max_model_len or spec.max_model_len
    if max_model_len > spec.max_model_len:
        raise StartupError(
            f"max_model_len is {max_model_len}, but {spec.name} takes {spec.max_model_len} tokens at most",
            code="UnsupportedOption",
        )
    return Configure(
        epoch=0,
        spec=spec,
        store=str(settings.store),
        backend=backend.name,
        options=backend_options(settings),
        limits=Limits(
            max_model_len=max_model_len,
            max_num_seqs=settings.max_num_seqs,
            max_batch_tokens=settings.max_batch_tokens,
            block_tokens=settings.block_size,
        ),
        policy=settings.policy,
        num_blocks=settings.kv_blocks,
        kv_cache_bytes=int(settings.kv_cache_bytes) if settings.kv_cache_bytes is not None else None,
        memory_share=_MEMORY_SHARE / num_models,
        plugins=plugin_settings(settings),
        log_level=settings.log_level,
    )


def admission_limits(settings: Settings) -> AdmissionLimits:
    return AdmissionLimits(max_waiting_requests=settings.max_waiting)


def wire_options(settings: Settings) -> WireOptions:
    return WireOptions(
        keep_alive_s=settings.sse_keep_alive_s,
        head_delay_s=settings.sse_head_delay_s,
        send_timeout_s=settings.sse_send_timeout_s,
        request_timeout_s=settings.request_timeout_s,
        lenient=settings.lenient,
        trust_chat_templates=settings.trust_request_chat_template,
        max_body_bytes=int(settings.max_body_bytes),
        max_json_depth=settings.max_json_depth,
        cors_origins=settings.cors_origins,
        trusted_proxies=_with_mapped(settings.trusted_proxies),
    )


def grpc_options(settings: Settings) -> GrpcOptions:
    return GrpcOptions(
        max_message_bytes=int(settings.grpc_max_message_bytes),
        send_timeout_s=settings.sse_send_timeout_s,
        request_timeout_s=settings.request_timeout_s,
    )


def call_limits(settings: Settings) -> CallLimits:
    return CallLimits(
        max_choices=settings.max_choices,
        max_stop_strings=settings.max_stop_strings,
        max_logprob_values=settings.max_logprob_values,
        max_prompt_logprob_values=settings.max_prompt_logprob_values,
        default_completion_tokens=settings.default_completion_tokens,
    )


def resume_limits(settings: Settings) -> ResumeLimits:
    return ResumeLimits(
        window_s=settings.resume_window_s,
        max_bytes=int(settings.resume_buffer_bytes),
        max_streams=settings.max_resumable_streams,
    )


def generation_defaults(settings: Settings, directory: Path) -> GenerationDefaults:
    """Of the model in `directory`. Raises StartupError."""
    given = {name: getattr(settings, f"default_{name}") for name in GenerationDefaults.__struct_fields__}
    return GenerationDefaults.of(directory, settings.generation_config, given)


def head_limits(settings: Settings) -> HeadLimits:
    return HeadLimits(max_bytes=int(settings.max_header_bytes), max_headers=settings.max_headers)


def fingerprint(configure: Configure) -> str:
    """The `system_fingerprint` of a model's answers: it differs when the model, the backend or what that computes in
    does."""
    spec = configure.spec
    parts = (__version__, spec.name, spec.architecture, spec.config, configure.backend, configure.options)
    return f"fp_{hashlib.sha256(msgspec.json.encode(parts, order='deterministic')).hexdigest()[:12]}"


def _with_mapped(networks: tuple[str, ...]) -> tuple[str, ...]:
    """A socket that listens for both families sees an IPv4 peer as an IPv6 address that holds it."""
    v4 = [network for network in map(ip_network, networks) if isinstance(network, IPv4Network)]
    return (*networks, *(f"::ffff:{network.network_address}/{96 + network.prefixlen}" for network in v4))
