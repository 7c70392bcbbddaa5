"""Devices and the links between them: the records, their file and one line, prices, collectives, the catalogue."""
