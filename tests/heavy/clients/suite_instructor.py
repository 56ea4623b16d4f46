"""instructor: answers as pydantic models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asked import MODEL, Endpoint

instructor = pytest.importorskip("instructor", reason="instructor is not installed")
openai = pytest.importorskip("openai")
pydantic = pytest.importorskip("pydantic")


class Person(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    name: str
    age: int


ADA = {"name": "Ada", "age": 36}


def client(endpoint: Endpoint, mode: str, **options: Any) -> Any:
    plain = openai.OpenAI(
        base_url=endpoint.base_url, api_key=endpoint.key, **{"max_retries": 0, "timeout": 20, **options}
    )
    return instructor.from_openai(plain, mode=getattr(instructor.Mode, mode))


@pytest.mark.parametrize(("mode", "prompt"), [("JSON", "person"), ("JSON_SCHEMA", "person"), ("TOOLS", "record")])
def test_whole_and_streamed(server: Endpoint, mode: str, prompt: str) -> None:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "response_model": Person}
    opened = client(server, mode)
    assert opened.chat.completions.create(**asked).model_dump() == ADA
    partial = list(opened.chat.completions.create_partial(**asked))
    assert partial[-1].model_dump() == ADA


def test_it_tries_again_after_a_429(busy: Endpoint, crowd: Callable[[], Any], refusals: Callable[[], int]) -> None:
    before = refusals()
    with crowd():
        answer = client(busy, "JSON_SCHEMA", max_retries=5).chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "person"}], response_model=Person
        )
    assert answer.model_dump() == ADA
    assert refusals() > before


def test_timeouts(server: Endpoint) -> None:
    with pytest.raises(Exception, match=r"(?i)timed? ?out"):
        client(server, "JSON", timeout=0.3).chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "slow"}], response_model=Person, max_retries=0
        )
