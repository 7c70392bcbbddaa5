"""A plan in several processes, on one host or many, joined by torch.distributed.

::

    front (rank 0) ──inputs──► rank 1: devices, their threads ──tensors──► rank 2 ──outputs──► front

`layout` which process has which devices · `routes` who sends what to whom · `packing`, `messages` how tensors travel ·
`wires` a connection to a peer, `peers` all those of a rank, `life` when one is given up · `meeting` all ranks find
each other and agree · `rank` the devices of one process · `front` the end that callers talk to, `worker` the others ·
`passages` the times of what travels · `clocks`, `failures` · `hosting` starts and ends the processes of this host ·
torchrun starts a rank by `planner.cli.rank`.

Training goes through `pipelining`, which has torch's engine (`pipeline_engine`) carry out its part (`pipeline_part`) of
the stages (`pipeline_stage`) among the ranks of a `team`, whose `vigil` sees that all live and that none has failed;
`pipeline_types` what they send in mixed precision, `pipeline_watch` when that leaves and comes. `training_front` trains
in processes of this host, which do as it says in `training_worker` with what it hands over in `parcels` and, in every
step, on `trays`.
"""
