"""A plan for training on the devices of one process: stages, the steps of a trainer, its options and its states."""
