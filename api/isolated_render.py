"""The child of `IsolatedRenders`: one job on standard input, one result on standard output. Run as a module."""

from __future__ import annotations

import math
import resource
import sys

import msgspec

from tickertape.api.isolated_renders import RenderJob, RenderResult
from tickertape.api.template_variables import template_variables
from tickertape.api.templates import ChatTemplate
from tickertape.core.errors import InvalidRequest, TickertapeError

__all__ = ["main"]


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=RenderJob)
    seconds = math.ceil(job.time_s)
    resource.setrlimit(resource.RLIMIT_AS, (job.memory_bytes, job.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))  # SIGXCPU at the first, which tells why
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        result = _render(job)
    except MemoryError:
        result = RenderResult(fault="the chat template took more memory than it may", param="chat_template")
    except TickertapeError as error:
        result = RenderResult(fault=error.message, code=_code(error), param=error.param or "chat_template")
    sys.stdout.buffer.write(msgspec.json.encode(result))


def _render(job: RenderJob) -> RenderResult:
    template = ChatTemplate(
        {"default": ("chat_template", job.source)}, special_tokens=job.special_tokens, time_limit_s=job.time_s
    )
    return RenderResult(
        template.render(
            job.messages,
            add_generation_prompt=job.add_generation_prompt,
            continue_final_message=job.continue_final_message,
            tools=job.tools or None,
            kwargs=template_variables(template, job.kwargs, job.effort),
        )
    )


def _code(error: TickertapeError) -> str:
    # That a template does not compile is a fault of starting only where it is the server's own.
    return error.code if isinstance(error, InvalidRequest) else "invalid_value"


if __name__ == "__main__":
    main()
