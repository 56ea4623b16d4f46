"""What a backend refuses of settings: said from config.json alone."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tickertape.backend_choice import check_options, choose_backend
from tickertape.core.backend import Backend, BackendOptions, Capabilities, ModelSpec
from tickertape.core.errors import PluginError, StartupError
from tickertape.plugins import API, hookimpl
from tickertape.plugins.manager import Plugins

SPEC = ModelSpec(name="m", path="/m", architecture="A", config={}, max_model_len=64, vocab_size=8)
ABLE = Capabilities(dtypes=("float32",), quantizations=("int8",))


def plugins(**more: Any) -> Plugins:
    mine = Backend(name="mine", kind="runner", factory="mine:make", capabilities=ABLE, options=("fast",), **more)

    @hookimpl
    def register_backends(register: Callable[[Backend], None]) -> None:
        register(mine)

    plugin = SimpleNamespace(API=API, register_backends=register_backends)
    return Plugins.load(found=(), given={"mine": plugin})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (BackendOptions(dtype="bfloat16"), "does not do dtype bfloat16; it does auto, float32"),
        (BackendOptions(device="cuda:1"), "does not do device cuda; it does cpu"),
        (BackendOptions(quantization="int4"), "does not do quantization int4; it does none, int8"),
        (BackendOptions(extra={"slow": 1}), "has no option 'slow'; it has fast"),
    ],
)
def test_what_it_does_for_no_model(options: BackendOptions, words: str) -> None:
    with pytest.raises(StartupError) as caught:
        check_options(plugins().backend("mine"), options)
    assert caught.value.code == "UnsupportedOption"
    assert caught.value.message == f"backend 'mine' {words}"
    with pytest.raises(StartupError, match=words):
        choose_backend(plugins(), None, SPEC, options)


def test_what_it_does_not_do_for_this_one() -> None:
    def refuses(spec: ModelSpec, options: BackendOptions) -> str | None:
        return f"{spec.name} in {options.quantization}: no" if options.quantization == "int8" else None

    loaded = plugins(refuses=refuses)
    assert choose_backend(loaded, "mine", SPEC, BackendOptions()).name == "mine"
    with pytest.raises(StartupError) as caught:
        choose_backend(loaded, None, SPEC, BackendOptions(quantization="int8"))
    assert (caught.value.code, caught.value.message) == ("BadOption", "m in int8: no")
    with pytest.raises(PluginError, match="no backend 'other'"):
        choose_backend(loaded, "other", SPEC, BackendOptions())


def test_a_backend_that_breaks_when_asked() -> None:
    def refuses(_: ModelSpec, __: BackendOptions) -> str | None:
        raise RuntimeError("no\nidea")

    with pytest.raises(StartupError, match=r"backend 'mine': its refuses\(\) raised RuntimeError: no idea"):
        choose_backend(plugins(refuses=refuses), "mine", SPEC, BackendOptions())
