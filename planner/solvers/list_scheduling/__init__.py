"""List schedulers: operators one by one."""
