"""Rewrites: another graph and program that compute the same network.

``patterns`` says which operators one kernel can compute together, ``fuse`` finds and applies them. ``batch_sizes``
works out a network for other numbers of samples; ``imported_names`` finds an operator by its name before the rewrites.
"""
