"""Tools for every package: errors and checks of arguments, documents that a user hands over, promises and signals."""
