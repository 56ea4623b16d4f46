"""`inference.GRPCInferenceService`: the Open Inference Protocol v2, for language models as Triton's vLLM backend spells
them."""
