"""Rewrites: another graph and program that compute the same network.

``patterns`` says which operators one kernel can compute together, ``fuse`` finds and applies them. ``batch_sizes``
works out a network for other numbers of samples; ``split`` divides operators by their ``choices``, with the caches that
these use (``cache_shardings``); ``imported_names`` finds an operator by its name before the rewrites.
"""
