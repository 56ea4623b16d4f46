"""`tickertape`, and `python -m tickertape`."""

from __future__ import annotations

import click

from tickertape import __version__
from tickertape.cli.group import LazyGroup

__all__ = ["main"]

_COMMANDS = {
    "serve": ("tickertape.cli.serve:serve", "Serve models over HTTP."),
    "chat": ("tickertape.cli.chat:chat", "Talk to a server in the terminal."),
    "models": ("tickertape.cli.models:models", "List the models of a server."),
    "check": ("tickertape.cli.check:check", "Run the conformance kit on a backend."),
    "weights": ("tickertape.cli.weights:weights", "Look after the weights store."),
    "plugins": ("tickertape.cli.plugins:plugins", "List the installed plugins and what became of them."),
}


@click.group(
    cls=LazyGroup,
    lazy=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    epilog="Exit status: 0 done; 1 the server could not start or go on, or a request failed; 2 wrong usage.",
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def main() -> None:
    """Stream tokens from language models.

    Start with "tickertape serve", then "tickertape chat" in another terminal.
    """


if __name__ == "__main__":
    main(prog_name="tickertape")
