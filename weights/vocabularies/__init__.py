"""Vocabularies in other formats than tokenizer.json, turned into one. Start at `convert.py`."""
