"""Shards: which utterance lies in which, and writing them."""
