"""The weights room: a content-addressed store shared by the processes of a node, what fills it, and how it is mapped.

It knows files, digests, safetensors and GGUF. It must not know HTTP servers, backends, torch, or who asked.
"""
