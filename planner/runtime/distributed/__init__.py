"""A plan in several processes, on one host or many, joined by torch.distributed.

::

    coordinator (rank 0) ──inputs──► rank 1: devices, their threads ──tensors──► rank 2 ──outputs──► coordinator

``transport`` is for inference and training alike: ranks meet, send tensors and notice that a rank is gone;
``inference`` runs a plan for inference, ``training`` a training plan. torchrun starts a rank by `planner.cli.rank`.
"""
