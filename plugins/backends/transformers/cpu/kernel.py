"""The paged attention kernel: reads keys and values where they lie, through the block tables.

The work of a step is cut into items that depend on one span alone: a kv head, a tile of the span's queries, a split of
its keys. Threads draw items until none is left: which thread computes what is chance, what is computed is not. A tile
keeps a running maximum and sum of each row's softmax. A span of few tokens is split along its keys at fixed positions;
whoever finishes the last split of a kv head merges them all, in order.

Only positions that some query of the tile may see are ever read.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from numba import njit

from tickertape.plugins.backends.transformers.cpu.arithmetic import exponential, fill, fma, largest
from tickertape.plugins.backends.transformers.cpu.job import COLUMNS, MAX_SPLITS, SPLIT_TOKENS, Job
from tickertape.plugins.backends.transformers.cpu.lanes import (
    address_of,
    at,
    fetch_add,
    float64_at,
    int32_at,
    int64_at,
    load,
    pointer_like,
    prefetch,
    scratch_like,
    store,
    width_of,
)
from tickertape.plugins.backends.transformers.cpu.tile import LOWEST, Tile, cap, hide, mix, multiply, soften, turn

__all__ = ["attend"]


_TICKET: Final = Job.ticket.offset // 8
_ENTRANTS: Final = Job.entrants.offset // 8
_Q, _K, _V = Job.q.offset // 8, Job.k.offset // 8, Job.v.offset // 8
_OUT, _SINKS = Job.out.offset // 8, Job.sinks.offset // 8
_QUERY_START, _START, _TABLES = Job.query_start.offset // 8, Job.start.offset // 8, Job.tables.offset // 8
_SCRATCH, _SCRATCH_STRIDE = Job.scratch.offset // 8, Job.scratch_stride.offset // 8
_PARTIALS, _PENDING = Job.partials.offset // 8, Job.pending.offset // 8
_NUM_PARTIALS, _NEEDED = Job.num_partials.offset // 8, Job.needed_partials.offset // 8
_NUM_SPANS, _ROWS = Job.num_spans.offset // 8, Job.rows.offset // 8
_TABLE_STRIDE, _BLOCK_TOKENS, _WINDOW = (
    Job.table_stride.offset // 8,
    Job.block_tokens.offset // 8,
    Job.window.offset // 8,
)
_NUM_HEADS, _NUM_KV_HEADS = Job.num_heads.offset // 8, Job.num_kv_heads.offset // 8
_KEY_DIM, _VALUE_DIM = Job.key_dim.offset // 8, Job.value_dim.offset // 8
_Q_TOKEN, _Q_HEAD = Job.q_token.offset // 8, Job.q_head.offset // 8
_OUT_TOKEN, _OUT_HEAD = Job.out_token.offset // 8, Job.out_head.offset // 8
_SCALE, _SOFTCAP = Job.scale.offset // 8, Job.softcap.offset // 8


class Cut(NamedTuple):
    """How one span becomes items. Its queries are one tile where they fit, and only then are its keys split."""

    start: int
    num_tokens: int
    begin: int
    end: int
    tile_tokens: int
    num_tiles: int
    split_tokens: int
    num_splits: int


@njit
def attend(job):  # type: ignore[no-untyped-def]
    """The body of one thread. `job` is the address of a Job; its pointer type tells the type of q, k, v and out."""
    fields = int64_at(address_of(job))
    num_spans, num_kv_heads = fields[_NUM_SPANS], fields[_NUM_KV_HEADS]
    needed = 0
    for span in range(num_spans):
        needed += _num_partials(_cut(fields, span)) * fields[_NUM_HEADS]
    fields[_NEEDED] = needed
    if needed > fields[_NUM_PARTIALS]:
        return
    tile = _tile_of(job, fields, fetch_add(at(fields, _ENTRANTS), 1))
    ticket = fetch_add(at(fields, _TICKET), 1)
    span = first_item = first_partial = 0
    while span < num_spans:
        cut = _cut(fields, span)
        num_items = cut.num_tiles * cut.num_splits * num_kv_heads
        if ticket >= first_item + num_items:
            span += 1
            first_item += num_items
            first_partial += _num_partials(cut) * fields[_NUM_HEADS]
            continue
        piece, kv_head = divmod(ticket - first_item, num_kv_heads)
        if cut.num_splits > 1:
            _do_split(job, fields, tile, cut, span, kv_head, piece, first_partial)
        else:
            # The last tile sees most: it comes first, so that no thread is left alone with it.
            _do_tile(job, fields, tile, cut, span, kv_head, cut.num_tiles - 1 - piece)
        ticket = fetch_add(at(fields, _TICKET), 1)


@njit
def _cut(fields, span):  # type: ignore[no-untyped-def]
    window, start = fields[_WINDOW], int32_at(fields[_START])[span]
    num_tokens = _first_token(fields, span + 1) - _first_token(fields, span)
    begin = max(0, start - window + 1) if window > 0 else 0
    end = start + num_tokens
    tile_tokens = fields[_ROWS] * fields[_NUM_KV_HEADS] // fields[_NUM_HEADS]
    num_tiles = (num_tokens + tile_tokens - 1) // tile_tokens
    if num_tiles != 1:
        return Cut(start, num_tokens, begin, end, tile_tokens, num_tiles, end, 1)
    split_tokens = SPLIT_TOKENS
    while end - begin > MAX_SPLITS * split_tokens:
        split_tokens *= 2
    num_splits = (end - 1) // split_tokens - begin // split_tokens + 1
    return Cut(start, num_tokens, begin, end, tile_tokens, num_tiles, split_tokens, num_splits)


@njit
def _first_token(fields, span):  # type: ignore[no-untyped-def]
    return int32_at(fields[_QUERY_START])[span]


@njit
def _num_partials(cut):  # type: ignore[no-untyped-def]
    """Per head."""
    return cut.num_splits * cut.num_tokens if cut.num_splits > 1 else 0


@njit
def _do_tile(job, fields, tile, cut, span, kv_head, index):  # type: ignore[no-untyped-def]
    window, first = fields[_WINDOW], index * cut.tile_tokens
    num_tokens = min(cut.tile_tokens, cut.num_tokens - first)
    start = cut.start + first
    low = max(0, start - window + 1) if window > 0 else 0
    _start_tile(job, fields, tile, kv_head, _first_token(fields, span) + first, num_tokens)
    _read(job, fields, tile, kv_head, span, start, num_tokens, low, start + num_tokens)
    _finish(job, fields, tile, kv_head, _first_token(fields, span) + first, num_tokens)


@njit
def _do_split(job, fields, tile, cut, span, kv_head, index, first_partial):  # type: ignore[no-untyped-def]
    num_rows = cut.num_tokens * (fields[_NUM_HEADS] // fields[_NUM_KV_HEADS])
    split = (cut.begin // cut.split_tokens + index) * cut.split_tokens
    low, high = max(cut.begin, split), min(cut.end, split + cut.split_tokens)
    _start_tile(job, fields, tile, kv_head, _first_token(fields, span), cut.num_tokens)
    _read(job, fields, tile, kv_head, span, cut.start, cut.num_tokens, low, high)
    partial = first_partial + kv_head * cut.num_splits * num_rows
    _save(job, fields, tile, partial + index * num_rows, num_rows)
    pending = at(int64_at(fields[_PENDING]), span * fields[_NUM_KV_HEADS] + kv_head)
    if fetch_add(pending, 1) == cut.num_splits - 1:
        fetch_add(pending, -cut.num_splits)
        _merge(job, fields, tile, partial, cut.num_splits, num_rows)
        _finish(job, fields, tile, kv_head, _first_token(fields, span), cut.num_tokens)


@njit
def _tile_of(job, fields, entrant):  # type: ignore[no-untyped-def]
    key_dim, value_dim, rows = fields[_KEY_DIM], fields[_VALUE_DIM], fields[_ROWS]
    key_wide, value_wide = (key_dim + 15) // 16 * 16, (value_dim + 15) // 16 * 16
    base = fields[_SCRATCH] + entrant * fields[_SCRATCH_STRIDE] * 8
    turned = base + rows * key_wide * 8
    scores = turned + COLUMNS * key_wide * 8
    mixed = scores + rows * COLUMNS * 8
    columns = mixed + rows * value_wide * 8
    places = columns + rows * 4 * 8
    lines = int64_at(places + 2 * COLUMNS * 8)
    for d in range(key_dim):
        lines[d] = d * COLUMNS
    return Tile(
        scratch_like(job, base),
        scratch_like(job, turned),
        scratch_like(job, scores),
        scratch_like(job, mixed),
        scratch_like(job, columns),
        scratch_like(job, columns + rows * 8),
        scratch_like(job, columns + rows * 16),
        scratch_like(job, columns + rows * 24),
        int64_at(places),
        int64_at(places + COLUMNS * 8),
        lines,
        key_dim,
        key_wide,
        value_dim,
        value_wide,
    )


@njit
def _start_tile(job, fields, tile, kv_head, token, num_tokens):  # type: ignore[no-untyped-def]
    """Takes in the scaled queries and forgets what came before. Rows are filled up with zeros to a multiple of 4."""
    group = fields[_NUM_HEADS] // fields[_NUM_KV_HEADS]
    scale = float64_at(address_of(fields))[_SCALE]
    num_rows = num_tokens * group
    for row in range((num_rows + 3) // 4 * 4):
        target = at(tile.queries, row * tile.key_wide)
        used = 0
        if row < num_rows:
            used = tile.key_dim
            offset = (token + row // group) * fields[_Q_TOKEN] + (kv_head * group + row % group) * fields[_Q_HEAD]
            source = at(pointer_like(job, fields[_Q]), offset)
            for d in range(used):
                target[d] = source[d] * scale
        for d in range(used, tile.key_wide):
            target[d] = 0.0
        for d in range(tile.value_wide):
            tile.mixed[row * tile.value_wide + d] = 0.0
    for row in range((num_rows + 15) // 16 * 16):
        tile.best[row] = LOWEST
        tile.peaks[row] = LOWEST
        tile.sums[row] = 0.0


@njit
def _read(job, fields, tile, kv_head, span, start, num_tokens, low, high):  # type: ignore[no-untyped-def]
    """Brings the tile's rows, whose first token stands at `start`, up to date with the positions [low, high)."""
    group = fields[_NUM_HEADS] // fields[_NUM_KV_HEADS]
    softcap = float64_at(address_of(fields))[_SOFTCAP]
    keys = at(pointer_like(job, fields[_K]), kv_head * tile.key_dim)
    values = at(pointer_like(job, fields[_V]), kv_head * tile.value_dim)
    num_rows = num_tokens * group
    for square in range(low // COLUMNS, (high + COLUMNS - 1) // COLUMNS):
        first, last = max(low, square * COLUMNS), min(high, (square + 1) * COLUMNS)
        _find(fields, tile, keys, values, span, first, last, high)
        turn(tile, keys)
        multiply(tile, num_rows)
        if softcap > 0.0:
            cap(tile.scores, num_rows * COLUMNS, softcap)
        hide(tile, fields[_WINDOW], group, start, num_rows, first, last)
        soften(tile, num_rows, last - first)
        mix(tile, values, last - first, num_rows)


@njit
def _find(fields, tile, keys, values, span, first, last, high):  # type: ignore[no-untyped-def]
    """Where the keys and values of positions [first, last) lie; the rest of the columns repeat the last one. Rows of
    the cache lie far apart, more than the processor foresees: what is needed next is asked for here."""
    block_tokens, num_kv_heads = fields[_BLOCK_TOKENS], fields[_NUM_KV_HEADS]
    table = at(int32_at(fields[_TABLES]), span * fields[_TABLE_STRIDE])
    block, offset = divmod(first, block_tokens)
    for column in range(last - first):
        place = (table[block] * block_tokens + offset) * num_kv_heads
        tile.k_places[column] = place * tile.key_dim
        tile.v_places[column] = place * tile.value_dim
        prefetch(at(values, tile.v_places[column]), tile.value_dim)
        offset += 1
        if offset == block_tokens:
            block, offset = block + 1, 0
    for column in range(last - first, COLUMNS):
        tile.k_places[column] = tile.k_places[last - first - 1]
    for _ in range(last, min(high, last + COLUMNS)):
        prefetch(at(keys, (table[block] * block_tokens + offset) * num_kv_heads * tile.key_dim), tile.key_dim)
        offset += 1
        if offset == block_tokens:
            block, offset = block + 1, 0


@njit
def _partial(job, fields, tile, index):  # type: ignore[no-untyped-def]
    """A row's place among the partial results: its mixed values, then its maximum and its sum."""
    return at(scratch_like(job, fields[_PARTIALS]), index * (tile.value_wide + 2))


@njit
def _save(job, fields, tile, partial, num_rows):  # type: ignore[no-untyped-def]
    for row in range(num_rows):
        target = _partial(job, fields, tile, partial + row)
        source = at(tile.mixed, row * tile.value_wide)
        for d in range(0, tile.value_wide, width_of(target)):
            store(at(target, d), load(at(source, d)))
        target[tile.value_wide] = tile.best[row]
        target[tile.value_wide + 1] = tile.sums[row]


@njit
def _merge(job, fields, tile, partial, num_splits, num_rows):  # type: ignore[no-untyped-def]
    """Puts the splits of each row together, in the order of their positions."""
    for row in range(num_rows):
        best = tile.best[row]
        for split in range(num_splits):
            part = _partial(job, fields, tile, partial + split * num_rows + row)
            best = max(best, part[tile.value_wide])
        mixed = at(tile.mixed, row * tile.value_wide)
        for d in range(0, tile.value_wide, width_of(mixed)):
            store(at(mixed, d), fill(mixed, 0.0))
        sums = fill(mixed, 0.0)
        for split in range(num_splits):
            part = _partial(job, fields, tile, partial + split * num_rows + row)
            factor = exponential(fill(part, part[tile.value_wide] - best))
            sums = fma(factor, fill(part, part[tile.value_wide + 1]), sums)
            for d in range(0, tile.value_wide, width_of(part)):
                store(at(mixed, d), fma(factor, load(at(part, d)), load(at(mixed, d))))
        tile.best[row] = best
        tile.sums[row] = largest(sums)


@njit
def _finish(job, fields, tile, kv_head, token, num_tokens):  # type: ignore[no-untyped-def]
    """Adds the sinks to the sums, divides, and writes the rows out."""
    group = fields[_NUM_HEADS] // fields[_NUM_KV_HEADS]
    for row in range(num_tokens * group):
        head = kv_head * group + row % group
        best, sums, factor = at(tile.best, row), at(tile.sums, row), at(tile.factors, row)
        factor[0] = 1.0
        if fields[_SINKS] != 0:
            sink = scratch_like(job, fields[_SINKS])[head]
            top = max(best[0], sink)
            factor[0] = largest(exponential(fill(best, best[0] - top)))
            sums[0] = sums[0] * factor[0] + largest(exponential(fill(best, sink - top)))
        mixed = at(tile.mixed, row * tile.value_wide)
        weight = factor[0] / sums[0]
        offset = (token + row // group) * fields[_OUT_TOKEN] + head * fields[_OUT_HEAD]
        out = at(pointer_like(job, fields[_OUT]), offset)
        for d in range(tile.value_dim):
            out[d] = mixed[d] * weight
