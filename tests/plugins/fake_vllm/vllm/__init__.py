"""As much of vLLM as the backend takes, with the signatures of 0.29 to 0.32: every prompt comes back, over and over."""

__version__ = "0.30.0"
