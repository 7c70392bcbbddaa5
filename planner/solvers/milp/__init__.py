"""Integer programs, and what hands them to HiGHS."""
