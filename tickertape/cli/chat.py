"""`tickertape chat`: a conversation in the terminal, over the HTTP API."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import click
import httpx

from tickertape.cli.client import ClientSettings, connect, error_text, load_client_settings, served_models, stop_with
from tickertape.cli.options import GroupedCommand, given, settings_options

__all__ = ["chat"]

_HELP = "/reset forgets the conversation, /help shows this, Ctrl-C stops an answer, Ctrl-D ends."


class ChatError(Exception):
    """The server refused, or broke off with an error. The message is its own."""


class Conversation:
    """The messages so far, and how to get the next one."""

    def __init__(self, client: httpx.Client, model: str, system: str | None, temperature: float) -> None:
        self._client = client
        self._temperature = temperature
        self._model = model
        self._system = system
        self._messages: list[dict[str, str]] = []
        self.reset()

    def reset(self) -> None:
        self._messages = [{"role": "system", "content": self._system}] if self._system else []

    def ask(self, text: str) -> Iterator[str]:
        """Streams the answer. What was said is kept, also of an answer that is broken off; a question that got no
        answer at all is forgotten. Raises ChatError."""
        self._messages.append({"role": "user", "content": text})
        said: list[str] = []
        try:
            for piece in self._stream():
                said.append(piece)
                yield piece
        finally:
            if said:
                self._messages.append({"role": "assistant", "content": "".join(said)})
            else:
                self._messages.pop()

    def _stream(self) -> Iterator[str]:
        body = {
            "model": self._model,
            "messages": self._messages,
            "temperature": self._temperature,
            "stream": True,
        }
        with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                raise ChatError(error_text(response.status_code, response.read()))
            for line in response.iter_lines():
                if not line.startswith("data: "):
                    continue
                if line == "data: [DONE]":
                    return
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise ChatError(str(event["error"]["message"]))
                for choice in event["choices"]:
                    if piece := choice["delta"].get("content"):
                        yield piece
        raise ChatError("the server broke off the answer")


@click.command(cls=GroupedCommand)
@click.argument("prompt", nargs=-1)
@settings_options(ClientSettings)
@click.option("--model", metavar="NAME", help="Model to talk to. [default: the server's first]")
@click.option(
    "--temperature",
    metavar="T",
    type=click.FloatRange(0.0, 2.0),
    default=0.2,
    show_default=True,
    help="Of the answers.",
)
@click.option("--system", metavar="TEXT", help="System message to begin with.")
def chat(prompt: tuple[str, ...], model: str | None, temperature: float, system: str | None, **values: Any) -> None:
    """Talk to a server in the terminal.

    With PROMPT, or with text on standard input, prints one answer and ends. Otherwise it is a conversation: Ctrl-C
    stops an answer, Ctrl-D ends.
    """
    if prompt and not " ".join(prompt).strip():
        raise click.UsageError("the prompt is empty")
    with connect(load_client_settings(given(values))) as client:
        chosen = model or next(iter(served_models(client)), None)
        if chosen is None:
            stop_with("the server serves no model yet")
        conversation = Conversation(client, chosen, system, temperature)
        if prompt:
            _answer_once(conversation, " ".join(prompt))
        elif sys.stdin.isatty():
            _converse(conversation, chosen)
        elif text := sys.stdin.read().strip():
            _answer_once(conversation, text)
        else:
            stop_with("nothing was asked")


def _answer_once(conversation: Conversation, text: str) -> None:
    try:
        for piece in conversation.ask(text):
            click.echo(piece, nl=False)
        click.echo()
    except ChatError as error:
        click.echo()
        stop_with(str(error))


def _converse(conversation: Conversation, model: str) -> None:
    import readline  # noqa: F401  line editing and history for input()

    click.secho(f"{model}. {_HELP}", dim=True)
    while True:
        try:
            text = input("> ").strip()
        except KeyboardInterrupt:
            click.echo()
            continue
        except EOFError:
            click.echo()
            return
        if text == "/reset":
            conversation.reset()
        elif text.startswith("/"):
            click.secho(_HELP, dim=True)
        elif text:
            _show_answer(conversation, text)


def _show_answer(conversation: Conversation, text: str) -> None:
    """Prints the answer as it comes. Ctrl-C closes the stream, which cancels it on the server."""
    answer = conversation.ask(text)
    try:
        for piece in answer:
            click.echo(piece, nl=False)
        click.echo()
    except KeyboardInterrupt:
        click.secho(" [stopped]", dim=True)
    except ChatError as error:
        click.secho(f"\n{error}", fg="red", err=True)
    finally:
        answer.close()  # type: ignore[attr-defined]
