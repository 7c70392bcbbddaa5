"""Keep of this environment's bill of materials what the project needs: ``sbom.py < all.json > needed.json``.

The bill has the edges of optional dependencies, too; what is needed follows from the metadata that is installed.
"""

import json
import re
import sys
from importlib.metadata import distribution
from typing import Any

from packaging.requirements import Requirement

PROJECT = "placement-planner"


def same(name: str) -> str:
    """Return the name of a package as an index compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(name: str, seen: set[str]) -> set[str]:
    """Add a package and all that it needs without extras to ``seen``."""
    if same(name) in seen:
        return seen
    seen.add(same(name))
    for requirement in map(Requirement, distribution(name).requires or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            needed(requirement.name, seen)
    return seen


def kept(bill: dict[str, Any]) -> dict[str, Any]:
    """Return the bill without packages that the project does not need."""
    names = needed(PROJECT, set())
    root = bill["metadata"]["component"]["bom-ref"]
    components = [each for each in bill["components"] if same(each["name"]) in names]
    missing = names - {same(each["name"]) for each in components} - {PROJECT}
    assert not missing, f"the bill lacks {missing}"
    refs = {root, *(each["bom-ref"] for each in components)}
    edges = [
        {**each, "dependsOn": [ref for ref in each.get("dependsOn", []) if ref in refs]}
        for each in bill["dependencies"]
        if each["ref"] in refs
    ]
    return {**bill, "components": components, "dependencies": edges}


if __name__ == "__main__":
    json.dump(kept(json.load(sys.stdin)), sys.stdout, indent=1, sort_keys=True)
    print()
