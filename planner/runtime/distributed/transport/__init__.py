"""How the ranks of a plan meet, send tensors and notice that a rank is gone.

`layout` the devices of each process, and which tensors go from which rank to which · `rendezvous` all ranks find each
other and agree · `messages` tensors as bytes · `checksums` by which a receiver sees that it has what was sent ·
`connections` to all peers of a rank · `liveness` when a peer is given up, and its clock · `failure_detector` the same
while torch waits
"""
