"""Everything about a GPU that wants to be seen on one, in eight minutes: `python -m tests.benchmarks.gpu`.

`checks` has a function for each question, `networks` what they run, `wheels` collects the packages that the GPU's host
may lack, and `__main__` calls each check in a process of its own and writes at once what was seen.
"""
