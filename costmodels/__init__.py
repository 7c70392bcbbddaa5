"""Cost models: devices, links, and seconds and bytes of every operator and tensor."""
