"""markov: a Markov chain of characters, as a backend of tickertape. This module only registers it."""

from tickertape.plugins import Backend, Capabilities, ModelSpec, hookimpl

API = (1, 0)


def supports(spec: ModelSpec) -> str | None:
    return None if spec.architecture == "MarkovForCausalLM" else "it computes MarkovForCausalLM only"


@hookimpl
def register_backends(register):
    register(
        Backend(
            name="markov",
            kind="runner",
            factory="tickertape_plugin_example.runner:make",
            capabilities=Capabilities(logits_processors=True),
            supports=supports,
            summary="the next character from the last two",
        )
    )
