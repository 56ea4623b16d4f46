"""Chat templates of every temper, for tests: what real models ship, reduced to the one trait that breaks servers."""

from __future__ import annotations

from typing import Final

__all__ = [
    "CHATML",
    "CONCATENATES_ARGUMENTS",
    "HOSTILE_ATTRIBUTES",
    "HOSTILE_LOOPS",
    "HOSTILE_MEMORY",
    "HOSTILE_POWERS",
    "ITERATES_ARGUMENTS",
    "ITERATES_CONTENT",
    "STRICT_ALTERNATION",
    "SYSTEM_REFUSED",
    "THINKS_AND_CALLS",
    "WRITES_BOS",
]

CHATML: Final = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

WRITES_BOS: Final = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message['role'] == 'user' %}
{{- '[INST] ' + message['content'] | trim + ' [/INST]' }}
{%- elif message['role'] == 'assistant' %}
{{- ' ' + message['content'] + eos_token }}
{%- else %}
{{- '[' + message['role'] + '] ' + message['content'] + ' ' }}
{%- endif %}
{%- endfor %}
"""

STRICT_ALTERNATION: Final = (
    """\
{%- set start = 1 if messages and messages[0]['role'] == 'system' else 0 %}
{%- for message in messages[start:] %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- endfor %}
"""
    + CHATML
)

SYSTEM_REFUSED: Final = (
    """\
{%- for message in messages %}
{%- if message['role'] == 'system' %}
{{- raise_exception('System role not supported') }}
{%- endif %}
{%- endfor %}
"""
    + CHATML
)

ITERATES_CONTENT: Final = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' }}
{%- for part in message['content'] %}
{{- '(' + part['text'] + ')' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

_WITH_TOOLS: Final = """\
{{%- if tools %}}
{{%- for tool in tools %}}
{{{{- tool | tojson + '\\n' }}}}
{{%- endfor %}}
{{%- endif %}}
{{%- for message in messages %}}
{{%- set before = loop.previtem or {{}} %}}
{{%- if message['role'] == 'tool' and not before.tool_calls and before.role != 'tool' %}}
{{{{- raise_exception('A tool message must follow the call it answers') }}}}
{{%- endif %}}
{{{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] }}}}
{{%- for call in message.tool_calls or [] %}}
{{{{- '<call ' + call.function.name + '>' }}}}
{arguments}
{{{{- '</call>' }}}}
{{%- endfor %}}
{{{{- '<|im_end|>\\n' }}}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}
{{{{- '<|im_start|>assistant\\n' }}}}
{{%- endif %}}
"""

ITERATES_ARGUMENTS: Final = _WITH_TOOLS.format(
    arguments="""\
{%- for name, value in call.function.arguments | items %}
{{- name + '=' + value | tojson + ';' }}
{%- endfor %}"""
)
"""Wants the arguments of earlier calls as an object."""

CONCATENATES_ARGUMENTS: Final = _WITH_TOOLS.format(arguments="{{- '(' + call.function.arguments + ')' }}")
"""Wants the arguments of earlier calls as the JSON text itself."""

THINKS_AND_CALLS: Final = """\
{%- if tools %}
{{- '<|im_start|>system\\nAnswer with <tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call>\\n' }}
{%- for tool in tools %}
{{- tool | tojson + '\\n' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- elif thinks_at_once is defined %}
{{- '<think>\\n' }}
{%- endif %}
{%- endif %}
"""
"""Thinks between tags unless told not to, and writes calls as Hermes does."""

HOSTILE_LOOPS: Final = """\
{%- set many = range(90000) | list %}
{%- for a in many %}{% for b in many %}{% for c in many %}{% endfor %}{% endfor %}{% endfor %}
"""
"""Runs for ever, for any practical purpose, without a call or an output on the way."""

HOSTILE_MEMORY: Final = "{%- set a = 'x' * 100000000 %}{%- for i in range(100) %}{% set ns = a * 100 %}{% endfor %}"
"""Asks for gigabytes at once."""

HOSTILE_POWERS: Final = "{{ (9 ** (9 ** 9)) | string | length }}"
"""One operation that takes for ever, where no loop can be counted."""

HOSTILE_ATTRIBUTES: Final = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
"""The first half of every escape from a template."""
