"""Language models that generate text: one description, read from a config.json, .safetensors or .gguf.

::

    config.json ────► from_config ─────┐
    *.safetensors ──► from_safetensors ├──► ModelDescription: layers (mixers, feed-forward part, tensors), other tensors
    *.gguf ─────────► from_gguf ───────┘

`read.read_language_model` recognises the file; `model` has the record, `mixers` and `feed_forward` the parts of a
layer, `tensors` and `formats` what weights take in memory. No weights are read.
"""
