"""Training on many devices: transformers in closed form, any network by its layers, unequal stages, exports."""
