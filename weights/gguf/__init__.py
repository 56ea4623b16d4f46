"""GGUF in, a Hugging Face model directory out. Numbers come from the `gguf` library; files are read with suspicion."""
