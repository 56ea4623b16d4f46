"""Structured output: the grammar library (llguidance) behind the ports of the core and the api. A worker compiles
grammars over the model's vocabulary and masks with them; the front compiles them too, over a vocabulary of single
bytes, to tell what is wrong with one before it is queued. Both sides refuse the same things."""
