"""Looks at a model before its weights are loaded: its class's own flags, then one forward pass on the meta device,
which has the real shapes and computes nothing, counting what comes to the attention function."""

from __future__ import annotations

from typing import Any, Final

import torch

from tickertape.plugins import StartupError
from tickertape.plugins.backends.transformers.interface import AttentionCall, Registration, WantedMask, unsupported
from tickertape.plugins.backends.transformers.layout import Attention, Layout
from tickertape.plugins.backends.transformers.library import one_line, quietly
from tickertape.plugins.backends.transformers.patterns import Pattern, recognise
from tickertape.plugins.backends.transformers.suitability import PAGED_LAYERS

__all__ = ["probe"]

_POSITIONS: Final = (3, 4, 0, 1, 2)  # two sequences side by side, the second from its beginning
_WANTED: Final = (1, 4)


def probe(model: Any) -> Layout:
    """What the model keeps of each token. `model` may be on any device; its attention implementation is left changed.

    Raises StartupError (UnsupportedArchitecture) for a class that says it keeps a state or has attention of its own,
    for layers that never call the attention function, and for calls that are not understood.
    """
    if model._is_stateful:
        raise unsupported("it keeps a recurrent state, which is not paged")
    config = model.config.get_text_config()
    strange = set(getattr(config, "layer_types", None) or ()) - PAGED_LAYERS
    if strange:
        raise unsupported(f"its {', '.join(sorted(strange))} layers keep a state that is not paged")
    if not model._can_set_attn_implementation():
        raise unsupported("its attention does not go through the library's attention interface")
    layout, num_logits, vocab_size = _forward(model, getattr(config, "attention_chunk_size", None))
    if (num_logits, vocab_size) != (len(_WANTED), config.vocab_size):
        raise unsupported("it does not give the logits of chosen positions, one per id of the vocabulary")
    silent = set(range(config.num_hidden_layers)) ^ {attention.layer_index for attention in layout}
    if silent:
        raise unsupported(f"not all of its layers go through the library's attention interface, such as {min(silent)}")
    return layout


def _forward(model: Any, chunk_size: int | None) -> tuple[Layout, int, int]:
    recorder = _Recorder(chunk_size)
    registration = Registration(recorder.attend)
    try:
        with quietly():
            model.set_attn_implementation(registration.name)
            try:
                shape = _run(model)
            except (NotImplementedError, RuntimeError):
                # Some mixtures of experts pick their rows by value, which meta tensors do not have.
                recorder.attentions.clear()
                shape = _run(_hollow(model))
    except StartupError:
        raise
    except Exception as error:
        # A model that does something to our masks, or that needs more inputs: whatever it raises, it is not for us.
        raise unsupported(f"it cannot be computed over packed rows ({one_line(error)})") from error
    finally:
        registration.close()
    return Layout(recorder.attentions), shape[1], shape[2]


def _run(model: Any) -> torch.Size:
    device = next(model.parameters()).device
    positions = torch.tensor([_POSITIONS], device=device)
    with torch.inference_mode():
        output = model(
            input_ids=torch.ones_like(positions),
            position_ids=positions,
            attention_mask=torch.ones_like(positions),
            use_cache=False,
            logits_to_keep=torch.tensor(_WANTED, device=device),
        )
    shape: torch.Size = output.logits.shape
    return shape


def _hollow(model: Any) -> Any:
    """Gives every tensor of the model its shape and the value zero, without the memory."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                zero = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
                module._parameters[name] = torch.nn.Parameter(zero, requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.zeros(buffer.shape, dtype=buffer.dtype)
    return model


class _Recorder:
    """An attention function that answers with the right shape and remembers what it was asked."""

    def __init__(self, chunk_size: int | None) -> None:
        self.attentions: list[Attention] = []
        self._chunk_size = chunk_size

    def attend(self, call: AttentionCall) -> torch.Tensor:
        q, k, v = call.q, call.k, call.v
        if not len(q) == len(k) == len(v) == len(_POSITIONS):
            raise unsupported("its attention changes the number of tokens")
        if q.shape[1] % k.shape[1] or k.shape[1] != v.shape[1] or q.shape[2] != k.shape[2]:
            raise unsupported("its heads are not grouped evenly")
        if call.sinks is not None and call.sinks.shape != q.shape[1:2]:
            raise unsupported("its attention sinks are not one per head")
        self.attentions.append(
            Attention(
                layer_index=call.layer_index,
                num_heads=q.shape[1],
                num_kv_heads=k.shape[1],
                key_dim=k.shape[2],
                value_dim=v.shape[2],
                pattern=self._pattern(call.mask),
            )
        )
        return q.new_zeros((*q.shape[:2], v.shape[2]))

    def _pattern(self, mask: WantedMask) -> Pattern:
        try:
            pattern = recognise(mask.function, mask.size)
        except RuntimeError:
            # The mask of chunks holds a tensor of the model's device, and meta tensors have no values to look at. The
            # self-check would tell if this were a mistake.
            pattern = Pattern("chunked", mask.size) if mask.size and mask.size == self._chunk_size else None
        if pattern is None:
            raise unsupported("its attention mask is neither causal, nor sliding, nor chunked")
        return pattern
