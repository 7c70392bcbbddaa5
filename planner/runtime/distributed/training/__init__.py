"""A training plan in several processes, on the engine of torch.distributed.pipelining.

`trainer` has torch's engine (`engine`) run the rank's `part` of the stages (`stage`), among the ranks of
`process_groups` · `gradients` the same gradients with any version of torch · `dtypes` what ranks send in mixed
precision · `transfer_log` when it leaves and comes · `hosted_trainer` trains in processes of this host: each is a
`worker`, which gets `payloads` in files and, in every step, micro-batches in `shared_memory`
"""
