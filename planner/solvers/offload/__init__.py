"""Latency with accelerators beside a host, as the literature's placement problems have it."""
