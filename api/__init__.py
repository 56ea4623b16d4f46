"""The wires, and the one service they spell. Knows text, requests and answers; of an engine only its port."""

if __name__ != "tickertape.api":
    raise ModuleNotFoundError("this room is imported as tickertape.api", name=__name__)
