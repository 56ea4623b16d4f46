"""The hooks. Their docstrings are the documentation.

Hooks collect objects once, while a process starts; afterwards the server makes plain calls on what they registered.
A hook that raises costs its own plugin everything it registered, and nobody else anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pluggy

from tickertape.core.backend import Backend
from tickertape.core.output_parser import OutputParserSpec
from tickertape.core.sources import WeightSource

__all__ = ["API", "PROJECT", "hookimpl", "register_backends", "register_output_parsers", "register_weight_sources"]

PROJECT: Final = "tickertape"
"""The name of the pluggy project and of the entry-point group."""

API: Final = (1, 0)
"""The version of this contract that the host speaks. A plugin module holds the one it was written against, in numbers
of its own: `API = (1, 0)`. The majors must be equal and the plugin's minor at most the host's."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def register_backends(register: Callable[[Backend], None]) -> None:
    """Registers runners, engines and predictors: call `register` once per backend.

    Runs in the front (which asks `supports` and reads the capabilities) and in the worker (which imports the
    factory), so the module that implements it must not import the library that does the work. `register` raises
    PluginError for a name that is taken or a record that is malformed.
    """


@hookspec
def register_output_parsers(register: Callable[[OutputParserSpec], None]) -> None:
    """Registers what finds reasoning and tool calls in a model's text: call `register` once per format.

    Runs in the front, where the parsers themselves run too, so the module that implements it must not import a heavy
    library. `register` raises PluginError for a name that is taken or a record that is malformed.
    """


@hookspec
def register_weight_sources(register: Callable[[WeightSource], None]) -> None:
    """Registers where weights come from: call `register` once per source, which names the
    URI schemes it takes.

    Runs in the fetcher. `register` raises PluginError for a scheme that is taken.
    """
