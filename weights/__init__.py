"""The shared safetensors store: fetched once, verified, published by rename, then only ever mapped read-only."""

if __name__ != "tickertape.weights":
    raise ModuleNotFoundError("this room is imported as tickertape.weights", name=__name__)
