# SPDX-License-Identifier: Apache-2.0
"""Options of `vllm serve` that users set, drawn beside those that size caches and groups.

They are drawn by themselves: without them a number draws what it drew before there were any.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.host import installed
from mkv_ascend.layout.kind import Role
from mkv_ascend.rules.model import ModelFacts
from reliability.parallel_drafts import folder_with_mask
from reliability.scenarios import Case
from reliability.shortened import shortened
from tests.support.engine import Scenario

Options = dict[str, Any]
HEADS = ("eagle", "eagle3", "mtp")
"""Methods whose draft may have ranks of its own, and a batch without padding."""
UNSET: dict[str, Any] = {"max_num_seqs": None, "max_num_batched_tokens": None}
"""What vLLM decides where a command says nothing."""


def with_options(case: Case, runner: str) -> Case:
    """The case with more options, which its number draws as well.

    Args:
        runner: vLLM's model runner, "v1" or "v2".
    """
    chance = random.Random(f"options {case.number}")
    scenario = case.scenario
    engine = dict(scenario.engine)
    for drawn in (_of_steps, _of_memory, _of_ranks):
        engine.update(drawn(chance, case, engine))
    if chance.random() < 0.3:
        # vLLM's own default, which is not the same for every model.
        engine.pop("enable_prefix_caching", None)
    speculative = {**scenario.speculative, **_of_drafts(chance, case, engine, runner)}
    if speculative.get("disable_padded_drafter_batch"):
        # vLLM refuses both.
        engine.pop("async_scheduling", None)
    scenario = replace(scenario, engine=engine, speculative=speculative)
    if chance.random() < 0.15 and case.pair.method == "draft_model":
        scenario = _drafted_in_parallel(scenario, case.pair.draft)
    scenario = _with_graphs(chance, scenario)
    # Last of all, so that what numbers drew before there was this one stays as it is.
    if chance.random() < 0.15:
        scenario = shortened(chance, scenario)
    return replace(case, scenario=scenario)


def _of_steps(chance: random.Random, case: Case, engine: Options) -> Options:
    """How steps are scheduled."""
    found: Options = {}
    if chance.random() < 0.15:
        found |= UNSET
    elif chance.random() < 0.15:
        # A prompt is one step then, which must hold the longest one.
        room = max(engine["max_num_batched_tokens"], engine["max_model_len"])
        found |= {"enable_chunked_prefill": False, "max_num_batched_tokens": room}
    if chance.random() < 0.35:
        found["async_scheduling"] = chance.random() < 0.7
    if chance.random() < 0.1:
        found["disable_hybrid_kv_cache_manager"] = True
    return found


def _of_memory(chance: random.Random, case: Case, engine: Options) -> Options:
    """A share of the device's memory in place of a number of bytes."""
    if chance.random() < 0.8:
        return {}
    return {"kv_cache_memory_bytes": None, "gpu_memory_utilization": chance.choice((0.04, 0.1))}


def _of_ranks(chance: random.Random, case: Case, engine: Options) -> Options:
    """Two ranks, which may share experts out."""
    if chance.random() < 0.8:
        return {}
    found: Options = {"tensor_parallel_size": 2}
    # vLLM refuses to share out what a target does not have.
    if chance.random() < 0.5 and has_experts(case.scenario.model):
        found["enable_expert_parallel"] = True
    return found


def has_experts(folder: str) -> bool:
    """Whether the model in ``folder`` has any."""
    values = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
    text = values.get("text_config", values)
    return ModelFacts(Role.TARGET, folder, values, text).num_experts > 0


def _of_drafts(chance: random.Random, case: Case, engine: Options, runner: str) -> Options:
    """Keys of `--speculative-config`."""
    k, method = case.scenario.num_speculative_tokens, case.pair.method
    shorter = chance.choice((64, 200, 300))
    is_new = installed().startswith("0.30")
    asked: dict[str, tuple[float, bool, Callable[[], Any]]] = {
        "max_model_len": (0.2, True, lambda: shorter),
        "enforce_eager": (0.15, True, lambda: True),
        "disable_padded_drafter_batch": (0.25, method in HEADS, lambda: True),
        "use_local_argmax_reduction": (0.15, True, lambda: True),
        "draft_tensor_parallel_size": (
            0.4,
            method in HEADS and "tensor_parallel_size" in engine,
            lambda: 1,
        ),
        "draft_sample_method": (
            0.3,
            is_new and runner == "v2",
            lambda: chance.choice(("greedy", "probabilistic")),
        ),
        "num_speculative_tokens_per_batch_size": (
            0.25,
            is_new and bool(engine["max_num_seqs"]) and engine["max_num_seqs"] > 1,
            lambda: [[1, 1, k], [2, engine["max_num_seqs"], chance.randint(1, k)]],
        ),
    }
    found: Options = {}
    for name, (share, possible, value) in asked.items():
        if chance.random() < share and possible:
            found[name] = value()
    return found


def _drafted_in_parallel(scenario: Scenario, draft: str) -> Scenario:
    """All tokens of a proposal at once, and nothing that narrows what the draft sees."""
    ours = {name: value for name, value in scenario.mkv_ascend.items() if name != "drafting"}
    speculative = {**scenario.speculative, "parallel_drafting": True}
    return replace(
        scenario, draft=folder_with_mask(draft), speculative=speculative, mkv_ascend=ours
    )


def _with_graphs(chance: random.Random, scenario: Scenario) -> Scenario:
    """Another mode of graphs, vLLM's default, or sizes that are no multiples of a verify step."""
    drawn = chance.random()
    if drawn < 0.2:
        engine = {**scenario.engine, "enforce_eager": False}
        return replace(scenario, engine=engine, graphs=None)
    if drawn < 0.35:
        return replace(scenario, graphs="PIECEWISE", traced=True)
    if drawn < 0.45:
        return replace(scenario, graphs="FULL", traced=False)
    if drawn < 0.65:
        sizes = sorted(chance.sample(range(1, 40), 3))
        return replace(scenario, capture_sizes=tuple(sizes))
    return scenario
