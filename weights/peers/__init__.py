"""Weights from the servers next door: what a node has whole and verified it hands to the others, within limits."""
