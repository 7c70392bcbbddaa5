"""A planned model that is called like the model itself."""
