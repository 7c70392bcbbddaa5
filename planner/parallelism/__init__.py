"""Training on many devices: a transformer in closed form, any network by its layers, unequal stages, exports of rows."""
