"""Rewrites: another graph and program that compute the same network.

``patterns`` says which operators one kernel can compute together, ``fuse`` finds and applies them, and ``scans`` finds
loops over time. ``sharding_rules`` and ``experts`` say how operators divide; ``split`` divides them by their
``choices``, with the caches that these use (``cache_shardings``), and ``experts_apart`` chooses those of a mixture.
``batch_sizes`` works out a network for other numbers of samples; ``imported_names`` finds an operator by its name
before the rewrites.
"""
