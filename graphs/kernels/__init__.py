"""How an operator is executed quickly on a processor: oneDNN, Winograd, attention, recurrent layers, rows.

The rest of the project asks `kernels.kernels_of` for the kernels of an operator and runs what `functions` compiles of
them; a kernel says what it reads and how it packs weights. The choice of a device is in `choice`. No kernels are added.
"""
