"""A training plan in several processes, on the engine of torch.distributed.pipelining.

`trainer` has torch's engine (`engine`) run the rank's `part` of the stages, among the ranks of `process_groups` ·
`hosted_trainer` trains in processes of this host: each is a `worker`, which gets its tools in files and, in every
step, micro-batches in shared memory
"""
