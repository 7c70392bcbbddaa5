"""Latency of a host with accelerators, as in the literature's placement problems."""
