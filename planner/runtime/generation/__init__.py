"""Generate text on the devices of a plan: passes of groups of sequences, their caches, and the choice of tokens."""
