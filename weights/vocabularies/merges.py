"""Byte pair encodings that rank their tokens, rewritten as the pairs that are merged, best first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenizers import pre_tokenizers

__all__ = ["byte_letters", "merges_by_rank", "merges_by_score"]


def merges_by_score(ids: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """SentencePiece joins the adjacent pair whose whole has the best score: the same as merging by rank, ranks in the
    order of scores. Of several ways to cut a token, the one with the smaller ids comes first."""
    ranked = []
    for token, token_id in ids.items():
        cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
        ranked += [(-scores[token_id], ids[left], ids[right]) for left, right in cuts if left in ids and right in ids]
    ranked.sort()
    texts = dict(zip(ids.values(), ids, strict=True))
    return [(texts[left], texts[right]) for _, left, right in ranked]


def merges_by_rank(ranks: Mapping[bytes, int]) -> list[tuple[str, str]]:
    """tiktoken joins the adjacent pair whose whole has the least rank. The tokens come in the letters that byte-level
    tokenizers write bytes in."""
    ranked = []
    for token, rank in ranks.items():
        cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
        ranked += [
            (rank, ranks[left], ranks[right], left, right) for left, right in cuts if left in ranks and right in ranks
        ]
    ranked.sort()
    letters = byte_letters()
    return [(left.decode("latin-1").translate(letters), right.decode("latin-1").translate(letters))
            for *_, left, right in ranked]  # fmt: skip


def byte_letters() -> dict[int, str]:
    """Byte to letter: printable Latin-1 stands for itself, the rest for letters from U+0100 on, in the order of the
    bytes."""
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    table = {byte: chr(byte) for byte in range(256) if chr(byte) in alphabet}
    others = (byte for byte in range(256) if byte not in table)
    return table | {byte: chr(256 + n) for n, byte in enumerate(others)}
