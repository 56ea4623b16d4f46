"""The engine in token ids: records, ports, blocks, scheduler, sampling, the loop. Knows no text, no HTTP, no device.

Read in this order: request, batch, ports; blocks, kv_cache, sequence; policy, waiting, roster, scheduler, settlement;
loop, driver, engine; then sampling and what it names, and grammar, arrivals, masking. Nothing here imports upward, and
nothing but numpy and msgspec from outside.
"""

if __name__ != "tickertape.core":
    raise ModuleNotFoundError("this room is imported as tickertape.core", name=__name__)
