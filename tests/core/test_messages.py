"""What crosses a process boundary comes out as it went in."""

from __future__ import annotations

import msgspec
import pytest

from tickertape.core import errors
from tickertape.core.messages import Abort, Emit, Failure, FromWorker, Submit, ToWorker
from tickertape.core.ports import EngineStats
from tickertape.core.request import (
    Finish,
    Grammar,
    Request,
    SamplingParams,
    TokenDelta,
    TokenLogprobs,
    pack_tokens,
    unpack_tokens,
)


def tree(root: type[errors.TickertapeError] = errors.TickertapeError) -> list[type[errors.TickertapeError]]:
    """Ours: other tests make errors of their own."""
    ours = [child for child in root.__subclasses__() if child.__module__.startswith("tickertape.")]
    return [root] + [found for child in ours for found in tree(child)]


@pytest.mark.parametrize("kind", tree(), ids=lambda kind: kind.__name__)
def test_every_error_survives_the_wire(kind: type[errors.TickertapeError]) -> None:
    sent = kind("the message", code="a_code", param="messages[0].content")
    packed = msgspec.msgpack.encode(Failure.of(sent))
    back = msgspec.msgpack.decode(packed, type=Failure).error()
    assert type(back) is kind
    assert (back.message, back.code, back.param) == ("the message", "a_code", "messages[0].content")


def test_an_error_of_a_newer_worker_is_an_engine_fault() -> None:
    assert type(errors.from_wire("NotYetInvented", "m", "c", None)) is errors.EngineFault


def test_the_docstring_draws_the_whole_tree() -> None:
    drawn = errors.__doc__ or ""
    assert [kind.__name__ for kind in tree() if kind.__name__ not in drawn] == []
    assert sorted(errors.__all__) == sorted([*(kind.__name__ for kind in tree()), "from_wire"])


def test_requests_and_deltas_round_trip() -> None:
    sampling = SamplingParams(
        max_tokens=7,
        seed=2**64 - 1,
        logit_bias=((5, -1.5),),
        allowed_tokens=(1, 2),
        bad_tokens=((3,), (4, 5)),
        stop_tokens=(9,),
        prompt_logprobs=0,
    )
    request = Request(
        id=2**40,
        prompt=pack_tokens([1, 2**32 - 1]),
        num_prompt_tokens=2,
        sampling=sampling,
        grammar=Grammar("regex", "a+"),
        cache_key=b"\0\xff",
        deadline=1.5,
    )
    for message in (Submit(request), Abort((1, 2))):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=ToWorker) == message
    score = TokenLogprobs((1, 2), (-0.5, -float("inf")), 1)
    deltas = [
        (1, TokenDelta((), prompt_logprobs=(score,), num_cached_tokens=16)),
        (2, TokenDelta((5, 6), logprobs=(score, score), finish=Finish("stop", 6))),
    ]
    emit = Emit(3, deltas, [(9, Failure("RowError", "m", "row_error"))], EngineStats(num_running=1))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(emit), type=FromWorker) == emit


def test_token_ids_are_u32_little_endian() -> None:
    assert pack_tokens([1, 258]) == b"\x01\0\0\0\x02\x01\0\0"
    assert unpack_tokens(pack_tokens((4, 5))) == [4, 5]
    assert pack_tokens([]) == b""
