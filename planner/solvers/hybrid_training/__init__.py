"""Which parallelism to train with: every shape of the space, and the best layers of its stages."""
