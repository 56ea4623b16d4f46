"""Attention on a CPU: the compiled kernel where numba is installed, else plain torch with the same results."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path

import torch

from tickertape.plugins.backends.transformers.cpu.job import Job, rows_of, scratch_words, wide
from tickertape.plugins.backends.transformers.cpu.team import Team, make_team
from tickertape.plugins.backends.transformers.gather import PagedAttention, gather_attention
from tickertape.plugins.backends.transformers.spans import Spans

__all__ = ["KernelAttention", "make_attention"]


def make_attention(dtype: torch.dtype, *, num_threads: int, cache_dir: Path | None = None) -> PagedAttention:
    """Compiles the kernel for `dtype` (seconds) or loads it from `cache_dir`, or a directory found instead; so call it
    while warming. Use the result from one thread at a time. float64, float32, bfloat16 and float16 are served."""
    if find_spec("numba") is None:
        return gather_attention
    return KernelAttention(dtype, make_team(num_threads), cache_dir)


class KernelAttention:
    """PagedAttention over the compiled kernel. The rows of a span do not depend, to the bit, on other spans of the
    step, on the threads, or on what blocks hold beyond the positions that the span sees."""

    def __init__(self, dtype: torch.dtype, team: Team, cache_dir: Path | None = None) -> None:
        # Importing numba takes a second: only who uses it pays.
        from tickertape.plugins.backends.transformers.cpu import arithmetic, cache, job, kernel, lanes, tile

        self._dtype = dtype
        self._computed = torch.float64 if dtype == torch.float64 else torch.float32
        self._team = team
        element = lanes.ELEMENTS[str(dtype).removeprefix("torch.")]
        directory = cache.find_directory(cache_dir)
        self._kernel = cache.compiled(
            kernel.attend, lanes.Pointer(element), (kernel, tile, arithmetic, lanes, job), directory
        )
        self._job = Job()
        self._job_address = ctypes.addressof(self._job)
        self._scratch = torch.empty(0, dtype=torch.int64)
        self._partials = torch.empty(0, dtype=self._computed)
        self._pending = torch.zeros(0, dtype=torch.int64)
        self._spans: Spans | None = None
        self._shape = (0, 0, 0, 0, 0)
        self._partial_numbers = 0

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        spans: Spans,
        *,
        scale: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None:
        """See PagedAttention."""
        if not (q.dtype == k_cache.dtype == v_cache.dtype == out.dtype == self._dtype):
            raise TypeError(f"attention over {self._dtype} was handed {q.dtype}, {k_cache.dtype} or {out.dtype}")
        job = self._job
        q = q if q.stride(2) == 1 else q.contiguous()
        job.q, job.k, job.v, job.out = q.data_ptr(), k_cache.data_ptr(), v_cache.data_ptr(), out.data_ptr()
        job.q_token, job.q_head, _ = q.stride()
        job.out_token, job.out_head, _ = out.stride()
        self._set_shape(q.shape[1], k_cache.shape[1], k_cache.shape[2], k_cache.shape[3], v_cache.shape[3])
        self._set_spans(spans)
        if job.num_spans * job.num_kv_heads > len(self._pending):
            self._pending = torch.zeros(job.num_spans * job.num_kv_heads, dtype=torch.int64)
            job.pending = self._pending.data_ptr()
        job.scale, job.softcap = scale, softcap or 0.0
        sinks = sinks if sinks is None else sinks.to(self._computed).contiguous()
        job.sinks = 0 if sinks is None else sinks.data_ptr()
        self._run()
        if job.needed_partials > job.num_partials:
            self._partials = torch.empty(job.needed_partials, self._partial_numbers, dtype=self._computed)
            job.partials, job.num_partials = self._partials.data_ptr(), job.needed_partials
            self._run()

    def _run(self) -> None:
        self._job.ticket = self._job.entrants = 0
        self._team.run(self._kernel.address, self._job_address)

    def _set_shape(self, num_heads: int, block_tokens: int, num_kv_heads: int, key_dim: int, value_dim: int) -> None:
        shape = (num_heads, block_tokens, num_kv_heads, key_dim, value_dim)
        if shape == self._shape:
            return
        self._shape = shape
        job = self._job
        job.num_heads, job.block_tokens, job.num_kv_heads, job.key_dim, job.value_dim = shape
        job.rows = rows_of(num_heads // num_kv_heads)
        job.scratch_stride = scratch_words(job.rows, key_dim, value_dim)
        if self._team.num_threads * job.scratch_stride > len(self._scratch):
            self._scratch = torch.empty(self._team.num_threads * job.scratch_stride, dtype=torch.int64)
            job.scratch = self._scratch.data_ptr()
        self._partial_numbers = wide(value_dim) + 2
        job.num_partials = self._partials.numel() // self._partial_numbers

    def _set_spans(self, spans: Spans) -> None:
        if spans is self._spans:
            return
        self._spans = spans  # held, so that the addresses stay good and the identity says something
        job = self._job
        for indices in (spans.query_start, spans.start, spans.tables):
            if indices.dtype != torch.int32 or indices.stride(-1) != 1:
                raise TypeError("spans are int32 and contiguous in their last dimension")
        job.query_start, job.start = spans.query_start.data_ptr(), spans.start.data_ptr()
        job.tables, job.table_stride = spans.tables.data_ptr(), spans.tables.stride(0)
        job.num_spans, job.window = len(spans.start), spans.window
