"""The gRPC wires: the native one and the adapters for clients of others, all over `api/service.py`."""
