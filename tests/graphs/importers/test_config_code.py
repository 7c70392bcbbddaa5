"""A config.json is data: whatever it names, no code is fetched, imported or run."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import transformers

from graphs.common.errors import InputError
from graphs.importers.from_config import build
from tests.graphs.importers.test_from_config import TEXT

pytestmark = pytest.mark.attack("file")

EVIL = "open('pwned', 'w').close()\nclass Config: ...\nclass Model: ...\n"


def written(folder: Path, **more: Any) -> Path:
    path = folder / "config.json"
    document = TEXT | {"model_type": "bert", "num_hidden_layers": 1, "max_position_embeddings": 8} | more
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"attn_implementation": "evil/kernel"}, "'attn_implementation' is 'evil/kernel'"),
        ({"_attn_implementation": "kernels-community/flash-attn@main:run"}, "'_attn_implementation' is "),
        ({"attn_implementation": {"": "evil/kernel"}}, "'attn_implementation' is {'': 'evil/kernel'}"),
        ({"experts_implementation": "evil/kernel"}, "'experts_implementation' is "),
        ({"text_config": {"attn_implementation": "evil/kernel"}}, "'text_config.attn_implementation' is "),
    ],
)
def test_a_repository_is_not_fetched(
    more: dict[str, Any], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetched(*_: Any, **__: Any) -> None:
        pytest.fail("transformers looks for a kernel")

    monkeypatch.setattr(transformers.modeling_utils, "lazy_import_flash_attention", fetched)
    with pytest.raises(InputError) as refusal:
        build(written(tmp_path, **more))
    assert str(refusal.value).startswith("the config asks for code from a repository (")
    assert what in str(refusal.value)


@pytest.mark.parametrize("reference", ["evil.Config", "evil--evil.Config", "../evil.Config"])
def test_code_beside_a_config_does_not_run(reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "evil.py").write_text(EVIL, encoding="utf-8")
    before = sorted(os.listdir())
    path = written(tmp_path, auto_map={"AutoConfig": reference, "AutoModel": reference}, trust_remote_code=True)
    with suppress(InputError):
        build(path)
    assert sorted(os.listdir()) == sorted([*before, "config.json"])


@pytest.mark.parametrize("name", ["pipeline", "utils", "AutoTokenizer", "logging", "Trainer"])
def test_an_architecture_is_a_network(name: str, tmp_path: Path) -> None:
    """Names of transformers that are no networks are not called."""
    with pytest.raises(InputError):
        build(written(tmp_path, architectures=[name]))
