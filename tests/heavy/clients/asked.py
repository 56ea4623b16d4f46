"""What the suites ask, whom, and what run.py's scripted model answers."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["GREETING", "MODEL", "WEATHER", "Endpoint"]

MODEL = "tiny"
GREETING = "Hello, wörld 😀!"

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class Endpoint(NamedTuple):
    url: str
    key: str

    @property
    def base_url(self) -> str:
        """As clients of OpenAI want it."""
        return f"{self.url}/v1"
