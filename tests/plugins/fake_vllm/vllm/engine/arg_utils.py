from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class AsyncEngineArgs:
    model: str = ""
    served_model_name: str | None = None
    tokenizer: str | None = None
    skip_tokenizer_init: bool = False
    trust_remote_code: bool = False
    dtype: str = "auto"
    generation_config: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    distributed_executor_backend: str | None = None
    scheduling_policy: str = "fcfs"
    enable_lora: bool = False
    enforce_eager: bool = False
    speculative_config: dict[str, Any] | None = None
    enable_log_requests: bool = False
    disable_log_stats: bool = False
