"""What to type next, once a server is ready."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

__all__ = ["command", "hints", "url_of"]

_QUESTION = "What is the capital of France?"


def url_of(host: str, port: int, *, tls: bool = False) -> str:
    """Where to reach a server that listens on `host`, from the same machine."""
    reachable = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "https" if tls else "http"
    return f"{scheme}://[{reachable}]:{port}" if ":" in reachable else f"{scheme}://{reachable}:{port}"


def command() -> str:
    """How this tickertape is called from here: by its name where the shell finds that, else by its path."""
    installed = Path(sys.executable).with_name("tickertape")
    found = shutil.which("tickertape")
    if not installed.exists() or (found is not None and Path(found).samefile(installed)):
        return "tickertape"
    path = str(installed)
    return shlex.quote(min(path, os.path.relpath(path), key=len))


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
        lines.append(f"{command()} chat --url {url} --model {shlex.quote(model)}")
    return "\n".join(lines)
