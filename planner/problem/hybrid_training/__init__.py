"""Training a transformer on many devices: how it can be divided among them, and what a step takes."""
