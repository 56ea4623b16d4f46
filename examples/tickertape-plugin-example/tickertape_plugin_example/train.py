"""Writes a model directory: `python -m tickertape_plugin_example.train TEXT DIRECTORY`."""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers


def train(text: str, directory: Path) -> None:
    """Counts which character follows which two. Id 0 ends a text, id 1 stands for characters that are not in it."""
    vocab = {"<end>": 0, "<unk>": 1} | {character: 2 + n for n, character in enumerate(sorted(set(text)))}
    size = len(vocab)
    ids = [0, *(vocab[character] for character in text), 0]
    counts = np.full((size, size, size), 0.01)
    np.add.at(counts, (slice(None), ids[:-1], ids[1:]), 0.1)  # what follows one character, whatever came before it
    np.add.at(counts, (ids[:-2], ids[1:-1], ids[2:]), 10.0)
    directory.mkdir(parents=True, exist_ok=True)
    table = np.log(counts).reshape(size * size, size).astype(np.float32)
    save_file({"table": table}, directory / "model.safetensors", metadata={"format": "np"})
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "architectures": ["MarkovForCausalLM"],
        "model_type": "markov",
        "vocab_size": size,
        "max_position_embeddings": 4096,
        "eos_token_id": 0,
    }
    (directory / "config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    train(Path(sys.argv[1]).read_text(), Path(sys.argv[2]))
