# SPDX-License-Identifier: Apache-2.0
"""The inventory of replaced code, and the guards that refuse to replace what has changed."""

import ast
import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

from mkv_ascend.adapters.guards import PatchRefused, expect, replaced
from mkv_ascend.adapters.vllm_ascend_0_23.attention.derived import derive
from mkv_ascend.adapters.vllm_ascend_0_23.patches import inventory
from mkv_ascend.adapters.vllm_ascend_0_23.patches.inventory_overridden import OVERRIDES
from mkv_ascend.adapters.vllm_ascend_0_23.patches.inventory_replaced import PATCHES

ROOT = Path(__file__).resolve().parents[3]
INVENTORY = [*PATCHES, *OVERRIDES]


@pytest.mark.parametrize("patch", INVENTORY, ids=lambda patch: patch.name)
def test_the_test_that_an_entry_names_exists(patch):
    for named in filter(None, (patch.test, patch.stock)):
        path, _, function = named.partition("::")
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert function in functions if function else functions


def test_every_entry_is_described_under_a_name_of_its_own():
    assert len({patch.name for patch in INVENTORY}) == len(INVENTORY)
    text = inventory.markdown()
    for patch in INVENTORY:
        assert f"### {patch.name}\n" in text
        assert all([patch.target, patch.why, patch.guard, patch.until])


def methods_of_classes(*paths):
    """Names of the methods that the classes in these files define."""
    found = set()
    for path in paths:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                found |= {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
    return found


def installed(package, *parts):
    """A file of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    return Path(spec.submodule_search_locations[0]).joinpath(*parts)


def test_every_method_that_a_proposer_of_ours_replaces_is_listed():
    ours = methods_of_classes(*(ROOT / "mkv_ascend" / "drafting").glob("*.py"))
    theirs = methods_of_classes(
        installed("vllm", "v1", "spec_decode", "llm_base_proposer.py"),
        installed("vllm_ascend", "spec_decode", "llm_base_proposer.py"),
    )
    replaced = ours & theirs - {"__init__"}
    assert {"_propose", "_run_merged_draft"} <= replaced
    text = inventory.markdown()
    assert [name for name in sorted(replaced) if name not in text] == []


def test_a_guard_names_the_patch_and_what_changed():
    expect(True, "window bound", "nothing")
    with pytest.raises(PatchRefused) as refusal:
        expect(False, "window bound", "Impl.sliding_window is gone")
    assert "'window bound'" in str(refusal.value)
    assert "Impl.sliding_window is gone" in str(refusal.value)
    assert not isinstance(refusal.value, Exception), "vLLM would swallow it"


def test_an_attribute_is_replaced_while_the_block_runs_even_if_it_fails():
    owner = SimpleNamespace(runner="theirs")

    def fail_inside():
        with replaced(owner, "runner", "ours"):
            assert owner.runner == "ours"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_inside()
    assert owner.runner == "theirs"


def test_an_attribute_that_is_gone_is_not_replaced():
    owner = SimpleNamespace(__name__="vllm_ascend.worker.worker")
    with (
        pytest.raises(PatchRefused, match=r"vllm_ascend\.worker\.worker has no runner"),
        replaced(owner, "runner", "ours"),
    ):
        pass
    assert not hasattr(owner, "runner")


class Foreign:
    def forward(self):
        return "theirs"


def test_a_derived_class_replaces_what_its_base_has():
    derived = derive(Foreign, "[draft]", {"forward": lambda self: "ours"})
    assert derived().forward() == "ours"
    assert issubclass(derived, Foreign)
    assert derived.__qualname__ == "MkvForeign[draft]"


def test_a_member_that_the_base_has_lost_is_refused_by_name():
    with pytest.raises(TypeError, match=r"Foreign has no forward_impl to replace"):
        derive(Foreign, "", {"forward_impl": lambda self: "ours"})
