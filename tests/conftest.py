"""For all tests: hypothesis draws the same examples in every run, and no test depends on how fast the machine is."""

from hypothesis import settings

settings.register_profile("project", deadline=None, derandomize=True)
settings.load_profile("project")
