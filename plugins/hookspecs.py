"""The hooks. Their docstrings are the documentation; docs/plugin-api.md adds examples and the table of changes.

A plugin is a module that holds `API` and functions marked `@hookimpl`, named as here. It may take fewer arguments than
listed: an argument that is added later breaks nobody. Hooks collect objects once, while a process starts; afterwards
the server makes plain calls on what they registered. A hook that raises while the plugin loads costs that plugin
everything it registered, and nobody else anything.

Processes: the front answers clients; a worker computes one model; the fetcher brings weights. Each loads the plugins
for itself, so a module must import quickly and without the library that does the work (that is what factories are for).
`tickertape plugins` collects as the front does, without startup.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Literal

import pluggy

from tickertape.core.backend import Backend
from tickertape.core.logits_processor import LogitsProcessorSpec
from tickertape.core.output_parser import OutputParserSpec
from tickertape.core.sources import AnySource
from tickertape.core.tokenizer import TokenizerSpec
from tickertape.plugins.caller import Caller
from tickertape.plugins.events import Event
from tickertape.plugins.routes import PluginRoute

__all__ = [
    "API",
    "PROJECT",
    "Process",
    "authenticate",
    "hookimpl",
    "observe",
    "register_backends",
    "register_logits_processors",
    "register_output_parsers",
    "register_routes",
    "register_tokenizers",
    "register_weight_sources",
    "shutdown",
    "startup",
]

PROJECT: Final = "tickertape"
"""The name of the pluggy project and of the entry-point group."""

API: Final = (1, 0)
"""The version of this contract that the host speaks. A plugin module holds the one it was written against, in numbers
of its own: `API = (1, 0)`. The majors must be equal and the plugin's minor at most the host's."""

Process = Literal["front", "worker", "fetcher"]

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def register_backends(register: Callable[[Backend], None]) -> None:
    """Registers runners, engines and predictors: call `register` once per backend.

    Runs in the front and the fetcher (which ask `supports` and `refuses` and read the capabilities) and in the worker
    (which imports the factory). `register` raises PluginError for a name that is taken or a record that is malformed.
    """


@hookspec
def register_weight_sources(register: Callable[[AnySource], None]) -> None:
    """Registers where weights come from: call `register` once per source, which names the URI schemes it takes.

    Runs in the fetcher, which alone calls the sources, and in the front, for the list of plugins. `register` raises
    PluginError for a scheme that is taken.
    """


@hookspec
def register_tokenizers(register: Callable[[TokenizerSpec], None]) -> None:
    """Registers tokenizers for models without a tokenizer.json: call `register` once per kind.

    Runs in the front, where the tokenizers run too. Of those that support a model the first registered is taken.
    `register` raises PluginError for a name that is taken.
    """


@hookspec
def register_output_parsers(register: Callable[[OutputParserSpec], None]) -> None:
    """Registers what finds reasoning and tool calls in a model's text: call `register` once per format.

    Runs in the front, where the parsers run too. A parser that raises is dropped for its choice, whose text then comes
    as content; after ten failures none of its plugin is used. `register` raises PluginError for a name that is taken.
    """


@hookspec
def register_logits_processors(register: Callable[[LogitsProcessorSpec], None]) -> None:
    """Registers what requests may ask to edit their logits: call `register` once per processor.

    Runs in the front (which calls `check` on the arguments of each request) and in the worker (which calls `make`, and
    the processors in its token loop). A processor that raises fails its request. `register` raises PluginError for a
    name that is taken.
    """


@hookspec
def authenticate(caller: Caller) -> str | Awaitable[str | None] | None:
    """Says who calls: a tenant's name of 1 to 128 characters, or None for whom this plugin does not know. Raises
    InvalidApiKey to refuse.

    Runs in the front, for each request but the probes, on its event loop: do not block; return an awaitable for what
    takes time (10 s at most). Once a plugin has this hook nobody gets in without the server's own key or a tenant from
    one of them. Fails closed: whatever else is raised refuses the request with 503. Name the plugin in --auth-plugins,
    and the server does not start without it.
    """


@hookspec
def observe(event: Event) -> None:
    """Is told of every request (RequestEvent) and of every step of our engine (StepEvent). Returns at once.

    Requests are told in the front, on its event loop; steps in the worker, on the thread that computes (in the front
    with --in-process). After ten failures the plugin is told no more.
    """


@hookspec
def register_routes(register: Callable[[PluginRoute], None]) -> None:
    """Registers HTTP routes under /plugins/NAME: call `register` once per route.

    Runs in the front, and only when the operator names the plugin in --route-plugins. `register` raises PluginError for
    a path that is taken or does not begin with "/".
    """


@hookspec
def startup(process: Process) -> None:
    """Opens what the plugin keeps: after all its other hooks, before anything is served. Raises to be taken out.

    Runs in the front, in each worker and in the fetcher, which `process` tells apart, on a thread that may block for a
    moment; the server waits for it.
    """


@hookspec
def shutdown(process: Process) -> None:
    """Closes what `startup` opened, when a process ends in order; one that is killed does not get to it.

    Runs where startup ran. Plugins are told in the opposite order; a failure is logged and stops nothing.
    """
