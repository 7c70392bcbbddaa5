"""Rewrites: another graph and program that compute the same network.

``patterns`` says which operators one kernel can compute together, ``fuse`` finds and applies them.
"""
