"""How the ranks of a plan meet, send tensors and notice that a rank is gone.

`layout` the devices of each process · `rendezvous` all ranks find each other and agree · `routes` which tensors go from
which rank to which · `packing`, `messages` tensors as bytes · `connections` to one peer, `peers` all those of a rank ·
`liveness` when a peer is given up, `failure_detector` the same while torch waits · `clocks` of hosts · `failures` as
text
"""
