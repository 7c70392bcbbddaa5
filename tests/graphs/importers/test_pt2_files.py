"""Classes in the arguments of a .pt2 file: which are registered with torch before it loads the file."""

import json
import sys
import zipfile
from pathlib import Path

import pytest

from graphs.importers.pt2_files import register_classes, unknown_classes
from tests.children import ran

CACHE = "transformers.cache_utils:DynamicCache"


def archive(folder: Path, *names: str) -> Path:
    path = folder / "net.pt2"
    spec = json.dumps([{"type": name} for name in names])
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("net/models/model.json", json.dumps({"in_spec": spec}))
    return path


def test_classes_of_transformers_are_registered_and_no_other_module_is_imported(tmp_path: Path) -> None:
    (tmp_path / "not_to_be_run.py").write_text("raise SystemExit('ran')")
    sys.path.insert(0, str(tmp_path))
    try:
        others = ("not_to_be_run.Cache", "transformers.no_such_module.Cache", "transformers.cache_utils.NoSuchCache")
        path = archive(tmp_path, "transformers.modeling_outputs.BaseModelOutput", CACHE, "builtins.dict", *others)
        register_classes(path)
    finally:
        sys.path.remove(str(tmp_path))
    assert unknown_classes(path) == list(others)


def test_a_file_without_classes_is_left_to_torch(tmp_path: Path) -> None:
    (tmp_path / "damaged.pt2").write_bytes(b"no archive")
    for path in (tmp_path / "damaged.pt2", tmp_path / "missing.pt2"):
        register_classes(path)
        assert unknown_classes(path) == []


EXPORT = """
import sys, torch, transformers
from transformers.exporters import DynamoConfig, DynamoExporter
sizes = dict(hidden_size=8, intermediate_size=8, num_attention_heads=1, num_key_value_heads=1, vocab_size=16)
net = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=1, **sizes)).eval()
ids = torch.ones(1, 3, dtype=torch.long)
cache = net(ids, use_cache=True).past_key_values
for layer in cache.layers: layer.keys, layer.values = layer.keys.detach(), layer.values.detach()
inputs = {"input_ids": ids[:, :1], "attention_mask": torch.ones(1, 4, dtype=torch.long), "past_key_values": cache}
torch.export.save(DynamoExporter().export_program(net, inputs, DynamoConfig())[0], sys.argv[1])
"""
READ = """
import sys; from pathlib import Path; from graphs.importers.from_torch import read_pt2
graph = read_pt2(Path(sys.argv[1])).graph
print([graph.tensor[name].shape for name in graph.inputs[2:]], [graph.tensor[name].shape for name in graph.outputs[1:]])
"""


@pytest.mark.slow  # two processes that import transformers
def test_one_step_of_a_language_model_with_its_cache_is_imported_in_a_fresh_process(tmp_path: Path) -> None:
    path = str(tmp_path / "step.pt2")
    (tmp_path / "export_a_step.py").write_text(EXPORT)
    ran([sys.executable, "-m", "export_a_step", path], cwd=tmp_path)
    # the cache of 3 tokens, keys and values of one head of 8 numbers, is one token longer afterwards
    assert "[(1, 1, 3, 8), (1, 1, 3, 8)] [(1, 1, 4, 8), (1, 1, 4, 8)]" in ran([sys.executable, "-c", READ, path]).stdout
