"""Tools for every package: errors, shortages, checks of arguments, documents of a user, promises and signals."""
