"""Runs a command while scripted servers are up: `python tests/heavy/run.py COMMAND ...`.

In its environment: TICKERTAPE_URL, a server with a key and room enough; TICKERTAPE_GRPC, the same over gRPC;
TICKERTAPE_BUSY_URL, one that computes one sequence and lets one more wait; TICKERTAPE_KEY, the key of both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from tickertape.testing.models import write_scripted
from tickertape.testing.processes import Server
from tickertape.testing.tokenizers import write_byte_level

KEY: Final = "sk-of-the-suites"

_TEMPLATE: Final = """\
{%- if tools %}<|im_start|>system
# Tools

You may call one or more functions. They are given within <tools></tools>:
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>

For each function call return a json object with its name and arguments within <tool_call></tool_call>:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""

_PERSON: Final = '{"name": "Ada", "age": 36}'
_CALL_OF: Final = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'


def write_model(directory: Path) -> Path:
    """A model of 200 tokens a second. A prompt with "greet" is greeted; "slow": digits for 3 s; "endless": never ends;
    "person": JSON of a name and an age; "record": the same as a call of a tool; "sunny" (a tool's answer): says so;
    "weather": calls a tool. Anything else comes back."""
    directory.mkdir()
    write_byte_level(directory, chat_template=_TEMPLATE)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    end = tokenizer.token_to_id("<|im_end|>")
    assert end is not None
    spoken: list[tuple[str, str]] = [
        ("sunny", "It is sunny in Paris."),
        ("greet", "Hello, wörld 😀!"),
        ('name": "PartialPerson', _CALL_OF % ("PartialPerson", _PERSON)),  # as instructor names it when it streams
        ("record", _CALL_OF % ("Person", _PERSON)),
        ("person", _PERSON),
        ("weather", _CALL_OF % ("get_weather", '{"city": "Paris"}')),
        ("slow", "0123456789" * 60),
    ]
    # Texts as the tokenizer cuts them, as grammars do with what they force.
    plays: list[dict[str, Any]] = [
        {"when": tokenizer.encode(word).ids, "tokens": tokenizer.encode(text).ids} for word, text in spoken
    ]
    plays.append({"when": list(b"endless"), "tokens": list(b"tick "), "then": "repeat"})
    write_scripted(directory, [*plays, {"echo": True}], eos_token_id=end, max_model_len=16384, token_s=0.005)
    return directory


def main(command: list[str]) -> int:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        model = write_model(directory / "tiny")
        common = [f"tiny={model}", "--port", "0", "--api-key", KEY, "--store", str(directory / "store")]
        started = [
            Server([*common, "--cors-origins", "*"], log=directory / "main.log"),
            Server(
                [*common, "--max-num-seqs", "1", "--max-waiting", "1", "--cors-origins", "*"],
                log=directory / "busy.log",
            ),
        ]
        try:
            main_server, busy_server = (server.until_ready() for server in started)
            environment = {
                "TICKERTAPE_URL": main_server.url,
                "TICKERTAPE_GRPC": f"127.0.0.1:{main_server.grpc_port}",
                "TICKERTAPE_BUSY_URL": busy_server.url,
                "TICKERTAPE_KEY": KEY,
            }
            status = subprocess.run(command, env=os.environ | environment, check=False).returncode
            return status or complaints(directory)
        finally:
            for server in started:
                server.kill()


def complaints(directory: Path) -> int:
    """1, and their lines, when a server logged an error."""
    lines = [line for log in directory.glob("*.log") for line in log.read_text().splitlines() if line.startswith("{")]
    errors = [line for line in lines if json.loads(line)["level"] == "error"]
    for line in errors:
        print(line, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
