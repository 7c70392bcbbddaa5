"""What a network is: operators, tensors and the way into and out of other formats."""
