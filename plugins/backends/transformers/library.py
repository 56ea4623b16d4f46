"""The few doors of the transformers library that we go through to get a config or a model without weights."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from transformers.utils import logging as its_logging

from tickertape.plugins import ModelSpec
from tickertape.plugins.backends.transformers.interface import unsupported

__all__ = ["build", "on_one_thread", "one_line", "quietly", "read_config"]


@contextmanager
def quietly() -> Iterator[None]:
    """Without the library's progress bars and advice, which would stand between a worker's own lines."""
    verbosity, bars = its_logging.get_verbosity(), its_logging.is_progress_bar_enabled()
    its_logging.set_verbosity_error()
    its_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        its_logging.set_verbosity(verbosity)
        if bars:
            its_logging.enable_progress_bar()


@contextmanager
def on_one_thread() -> Iterator[None]:
    """For work so small that waking a second thread costs more than it brings, on a busy machine much more."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def read_config(spec: ModelSpec, *, trust_remote_code: bool) -> Any:
    """The library's config of the model. Raises StartupError when it knows no such model."""
    with quietly():
        try:
            return transformers.AutoConfig.from_pretrained(spec.path, trust_remote_code=trust_remote_code)
        except Exception as error:
            # Anything may come: the config's own class runs its checks, remote code included.
            version = transformers.__version__
            raise unsupported(f"transformers {version} cannot read its config: {one_line(error)}") from error


def build(config: Any, dtype: torch.dtype, device: str, *, trust_remote_code: bool = False) -> Any:
    """A model of that config with weights as the library initialises them (none at all on "meta")."""
    with quietly(), torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation="eager", trust_remote_code=trust_remote_code
        )
    return model.eval().requires_grad_(False)


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"
