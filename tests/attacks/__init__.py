"""Inputs that nobody chose: generators of broken files, odd options and faults, from one seed each.

`tests.benchmarks.attack --hours N` runs them without end; a few of each run in the tests beside them.
"""
