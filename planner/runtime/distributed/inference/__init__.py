"""A plan for inference in several processes.

`launcher` starts and ends the processes of this host · `rank` the devices of one process · `coordinator` the rank that
callers talk to
"""
