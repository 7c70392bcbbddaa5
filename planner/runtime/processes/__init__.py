"""A plan in several processes, on one host or many, joined by torch.distributed.

::

    front (rank 0) ──inputs──► rank 1: devices, their threads ──tensors──► rank 2 ──outputs──► front

`layout` which process has which devices · `routes` who sends what to whom · `packing`, `messages` how tensors travel ·
`wires` a connection to a peer · `meeting` all ranks find each other and agree · `rank` the devices of one process ·
`front` the end that callers talk to, `worker` the others · `clocks`, `failures` · `hosting` starts and ends the
processes of this host · torchrun starts a rank by `planner.cli.rank`. Training goes through `pipelining`.
"""
