"""Fetching the files of a manifest: peers first, then the origin, in verified pieces that survive a kill."""
