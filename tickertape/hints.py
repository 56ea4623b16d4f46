"""What to type next, once a server is ready."""

from __future__ import annotations

import json
import shlex
from typing import Any

__all__ = ["hints", "url_of"]

_QUESTION = "What is the capital of France?"


def url_of(host: str, port: int) -> str:
    """Where to reach a server that listens on `host`, from the same machine."""
    reachable = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def hints(url: str, model: str, *, chat: bool, key: bool) -> str:
    """A curl line, and a `tickertape chat` line when the model has a chat template."""
    if chat:
        route = "chat/completions"
        body: dict[str, Any] = {"messages": [{"role": "user", "content": _QUESTION}]}
    else:
        route, body = "completions", {"prompt": "Once upon a time", "max_tokens": 32}
    payload = json.dumps({"model": model, **body, "temperature": 0, "stream": True})
    authorization = ' -H "authorization: Bearer $TICKERTAPE_API_KEY"' if key else ""
    lines = [
        f"curl -N {url}/v1/{route} -H 'content-type: application/json'{authorization} \\",
        f"  -d {shlex.quote(payload)}",
    ]
    if chat:
        lines.append(f"tickertape chat --url {url} --model {shlex.quote(model)}")
    return "\n".join(lines)
