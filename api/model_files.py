"""The small JSON files beside a model's weights that say how its text works."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tickertape.core.errors import StartupError

__all__ = ["read_json", "special_tokens", "token_text"]


def read_json(directory: Path, name: str) -> Mapping[str, Any]:
    """The object in a file; empty when there is no such file. Raises StartupError (BadTokenizer) naming file and line
    when it cannot be read as one."""
    try:
        content = json.loads((directory / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except json.JSONDecodeError as error:
        raise StartupError(f"{name}, line {error.lineno}: {error.msg}", code="BadTokenizer") from error
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"{name} cannot be read: {_reason(error)}", code="BadTokenizer") from error
    if not isinstance(content, dict):
        raise StartupError(f"{name} does not hold a JSON object", code="BadTokenizer")
    return content


def _reason(error: Exception) -> str:
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else "not UTF-8"


def token_text(entry: object) -> str | None:
    """The text of a token as configs spell it: a string, or an object with `content`."""
    if isinstance(entry, Mapping):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else None


def special_tokens(directory: Path) -> dict[str, str]:
    """`bos_token`, `eos_token` and the like, as text. tokenizer_config.json wins over special_tokens_map.json, also
    where it says null: a model without BOS says so there."""
    merged = {**read_json(directory, "special_tokens_map.json"), **read_json(directory, "tokenizer_config.json")}
    found = {name: token_text(entry) for name, entry in merged.items() if name.endswith("_token")}
    return {name: text for name, text in found.items() if text is not None}
