# SPDX-License-Identifier: Apache-2.0
"""States that are kept at ends of blocks: steps beside them, and vLLM's mode of all blocks."""

import ast
import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from mkv_ascend.adapters import installed
from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.checks.about_kept_states import of_all_blocks, short_steps
from mkv_ascend.checks.facts import DeviceFacts, ServeFacts, SpeculationFacts
from mkv_ascend.checks.model import ModelFacts
from mkv_ascend.config import MkvConfig
from mkv_ascend.layout.kind import Role
from tests.support import hosts
from tests.support.host_checks import EQUAL_PAGES, SHARED
from tests.support.host_checks import refused as refused_by_host

BLOCK, K, REQUESTS = 128, 4, 3


def refused(method=None, options=None, **engine):
    """Whether steps of a block of 128 tokens are refused."""
    target = ModelFacts(Role.TARGET, "T", {}, {})
    device = DeviceFacts(1, None, DeviceGeneration.A2, "a test")
    draft = None if method is None else SpeculationFacts(method, K, options or {})
    engine = {"max_num_seqs": REQUESTS, **engine}
    facts = ServeFacts(engine, MkvConfig(), target, device, draft, kept_block=BLOCK)
    return [refusal.code for refusal in short_steps(facts)]


@pytest.mark.parametrize(
    ("method", "options", "kept_of_each"),
    [
        (None, {}, 0),
        ("mtp", {}, 0),
        ("draft_model", {}, 1),
        ("draft_model", {"parallel_drafting": True}, K),
        ("eagle3", {"parallel_drafting": True}, K - 1),
        ("dflash", {}, K - 1),
    ],
)
def test_a_step_has_a_block_beside_what_drafts_keep(method, options, kept_of_each):
    least = BLOCK + REQUESTS * kept_of_each
    assert refused(method, options, max_num_batched_tokens=least) == []
    assert refused(method, options, max_num_batched_tokens=least - 1) == ["step-size"]


def test_a_chunk_has_a_block():
    assert refused(long_prefill_token_threshold=BLOCK) == []
    assert refused(long_prefill_token_threshold=BLOCK - 1) == ["step-size"]
    assert refused(long_prefill_token_threshold=0) == []


@pytest.mark.parametrize(
    ("target", "given", "is_refused"),
    [
        ("granite4", {"mamba_cache_mode": "all"}, True),
        ("granite4", {"mamba_cache_mode": "all", "enable_prefix_caching": True}, True),
        ("granite4", {"mamba_cache_mode": "all", "enable_prefix_caching": False}, False),
        ("granite4", {"mamba_cache_mode": "align"}, False),
        ("granite4", {}, False),
        # vLLM takes "align" for these by itself, and has no states here.
        ("LFM2-1.2B", {"mamba_cache_mode": "all"}, False),
        ("Qwen3-Next-80B-A3B", {"mamba_cache_mode": "all", "enable_prefix_caching": True}, False),
        ("Llama-3.1-8B", {"mamba_cache_mode": "all"}, False),
    ],
)
def test_states_of_all_blocks_are_refused_where_they_would_be_kept(
    target, given, is_refused, models
):
    engine = {"model": models[target], **given}
    assert ("kept-states" in refused_by_host(engine, EQUAL_PAGES)) is is_refused
    assert "kept-states" not in refused_by_host(engine, SHARED)


def test_the_mode_that_may_be_used_instead_is_named():
    refusal = of_all_blocks()
    assert refusal.possible == "states at the ends of chunks"
    assert refusal.change == "use --mamba-cache-mode align"


def test_hits_beside_states_alone_are_not_looked_for_by_default(models, tmp_path):
    """Of a target without attention."""
    config = json.loads((Path(models["mamba-only"]) / "config.json").read_text())
    config["architectures"] = ["Mamba2ForCausalLM"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    engine = {"model": str(tmp_path), "mamba_cache_mode": "all"}
    assert "kept-states" not in refused_by_host(engine, EQUAL_PAGES)
    assert "kept-states" in refused_by_host({**engine, "enable_prefix_caching": True}, EQUAL_PAGES)


@hosts.only_on("vllm_ascend_0_30", "0.23.0's adapter keeps states in one mode")
def test_classes_with_states_of_all_blocks_are_those_of_the_sources():
    """Names in vLLM's registry of classes that say so, or inherit it."""
    found = find_spec("vllm")
    assert found is not None
    assert found.submodule_search_locations
    folder = Path(found.submodule_search_locations[0], "model_executor", "models")
    bases: dict[str, set[str]] = {}
    registered: dict[str, str] = {}
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                names = {base.id for base in node.bases if isinstance(base, ast.Name)}
                bases.setdefault(node.name, set()).update(names)
            elif isinstance(node, ast.Dict) and file.name == "registry.py":
                registered |= classes_of(node)

    def keeps(name: str) -> bool:
        return any(x == "SupportsMambaPrefixCaching" or keeps(x) for x in bases.get(name, ()))

    kept = {name for name, of_class in registered.items() if keeps(of_class)}
    assert kept == installed.rules().keeps_states_of_all_blocks


def classes_of(table: ast.Dict) -> dict[str, str]:
    """Name of an architecture -> name of the class, in a table of the registry."""
    found = {}
    for name, place in zip(table.keys, table.values, strict=True):
        if isinstance(name, ast.Constant) and isinstance(place, ast.Tuple) and len(place.elts) == 2:
            found[name.value] = ast.literal_eval(place.elts[1])
    return found
