"""Training a network by data, tensor and pipeline parallelism at once, on torch's own DTensor, FSDP2 and pipelining."""
