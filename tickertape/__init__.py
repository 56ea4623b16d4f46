"""tickertape: a plugin-based LLM token-streaming server. Plugin authors import `tickertape.plugins`, nothing else."""

__version__ = "0.1.0"
