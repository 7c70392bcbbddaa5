"""Networks for data- and tensor-parallel stages (Piper, NeurIPS 2021)."""
