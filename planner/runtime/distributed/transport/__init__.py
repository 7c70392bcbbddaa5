"""How the ranks of a plan meet, send tensors and notice that one of them is gone.

`layout` which process has which devices · `rendezvous` all ranks find each other and agree · `routes` who sends what to
whom · `packing`, `messages` how tensors travel · `connections` to a peer, `peers` all those of a rank · `liveness` when
a peer is given up, `failure_detector` the same while torch waits · `clocks` of hosts · `failures` as text
"""
