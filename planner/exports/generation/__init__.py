"""Plans for generating text, for the tools that run them."""
