"""How costly it is: devices, links, and seconds and bytes for every operator and tensor."""
