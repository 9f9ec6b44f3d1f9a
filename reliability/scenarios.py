# SPDX-License-Identifier: Apache-2.0
"""Engines drawn at random: a pair of tiny models, options of serving, and requests.

A number gives the same engine again, on the same pairs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.matrix import cells
from benchmarks.matrix.families import FLOAT32
from tests.support.engine import Scenario
from tests.support.loop_judgement import REFERENCE_OF
from tests.support.tiny_models import model_directory

BLOCK = 128
"""Tokens of a KV block, unless the engine chooses larger ones."""
LONGEST = 384
"""Tokens of a prompt, at most: three blocks."""
WITH_TRITON = {"EMULATED_NPU_TRITON": "1"}


@dataclass(frozen=True)
class Pair:
    """A target and its draft.

    Attributes:
        most_drafts: the largest K that is drawn.
        engine: arguments of ``vllm.LLM`` that the family needs.
        rounded: whether it computes in bfloat16 alone: its tokens are counted, and not compared.
        triton: whether vLLM is to find Triton.
    """

    target: str
    draft: str
    method: str
    most_drafts: int = 6
    engine: Mapping[str, Any] = field(default_factory=dict, hash=False)
    rounded: bool = False
    triton: bool = False

    def __str__(self) -> str:
        return f"{self.target} + {self.draft} ({self.method})"

    @property
    def reference(self) -> str:
        """The model that Hugging Face runs in place of the target, which may hold an MTP layer."""
        return REFERENCE_OF.get(self.target, self.target)


ATTENTION = (
    Pair("llama_target", "llama_draft", "draft_model"),
    Pair("gemma3", "gemma3_draft", "draft_model"),
    Pair("gemma3_alternating", "gemma3_alternating_perturbed", "draft_model"),
    Pair("gpt_oss", "gpt_oss_draft", "draft_model"),
    Pair("llama_target", "deepseek_v2_draft", "draft_model"),
    Pair("deepseek_v2_target", "gemma3_draft", "draft_model"),
    Pair("llama_target", "llama_eagle3", "eagle3", 4),
    Pair("gpt_oss", "gpt_oss_eagle3", "eagle3", 4),
    Pair("deepseek_v3_mtp", "deepseek_v3_mtp", "mtp", 4),
    Pair("gpt_oss", "gpt_oss_dflash", "dflash", 3),
)
STATES = (
    Pair("qwen3_next", "llama_draft", "draft_model"),
    Pair("qwen3_next_mtp", "qwen3_next_mtp", "mtp", 4),
    Pair("granite4", "llama_draft", "draft_model"),
    Pair("lfm2", "llama_draft", "draft_model"),
    Pair("llama_target", "qwen3_next_draft", "draft_model"),
)
"""With recurrent layers."""


def families() -> tuple[Pair, ...]:
    """Every family of the matrix with every draft of it that has layers.

    Heads draw no more draft tokens than they were trained for.
    """
    return tuple(
        Pair(
            cell.target_model,
            cell.draft_model,
            cell.method,
            cells.K,
            cell.engine,
            cell.reference != FLOAT32,
            cell.triton,
        )
        for cell in cells.all_cells()
        if cell.draft_model is not None
    )


@dataclass(frozen=True)
class Case:
    """One engine. ``number`` draws it; ``judged``: every draft token is noted and judged.

    ``longest``: tokens of the longest request, where the options leave that to memory.
    """

    number: int
    pair: Pair
    scenario: Scenario
    judged: bool
    longest: int | None = None

    def describe(self) -> str:
        """One line: the pair, and what was drawn."""
        scenario = self.scenario
        drawn = {
            "K": scenario.num_speculative_tokens,
            "requests": len(scenario.prompts),
            "tokens": scenario.max_tokens,
            "graphs": scenario.graphs,
            "sizes": scenario.capture_sizes,
            "rounds": scenario.repeats,
            "preempted": scenario.force_preemption,
            **scenario.engine,
            **{f"draft {key}": value for key, value in scenario.speculative.items()},
        }
        options = ", ".join(f"{name} {value}" for name, value in drawn.items())
        return f"{self.number}: {self.pair}: {options}"


def draw(number: int, pairs: Sequence[Pair], environment: dict[str, str]) -> Case:
    """The case of this number.

    Args:
        pairs: those to draw from.
        environment: variables of the engine's process, for instance of a model runner.
    """
    chance = random.Random(number)
    pair = chance.choice(pairs)
    k = pair.most_drafts if pair.method == "dflash" else chance.randint(1, pair.most_drafts)
    judged = chance.random() < 0.7 and not pair.rounded
    engine = {**_options(chance, k), **pair.engine}
    if pair.triton:
        environment = {**WITH_TRITON, **environment}
    graphs = chance.choice((None, "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"))
    scenario = Scenario(
        model=str(model_directory(pair.target)),
        draft=str(model_directory(pair.draft)),
        num_speculative_tokens=k,
        prompts=_prompts(chance, pair, int(engine["max_model_len"])),
        max_tokens=chance.choice((1, 2, k + 1, 17, 32, 48)),
        engine=engine,
        speculative={"method": pair.method},
        environment=environment,
        repeats=chance.choice((1, 1, 2)),
        graphs=graphs,
        traced=graphs == "FULL_AND_PIECEWISE",
        capture_sizes=tuple(sorted({(k + 1) * rows for rows in (1, 2, 4)})),
        record_drafts=judged,
        force_preemption=chance.random() < 0.2,
    )
    return Case(number, pair, scenario, judged)


def _options(chance: random.Random, k: int) -> dict[str, Any]:
    requests = chance.choice((1, 2, 3, 8))
    options: dict[str, Any] = {
        "max_num_seqs": requests,
        # A step holds at least what all requests verify.
        "max_num_batched_tokens": max(requests * (k + 1), chance.choice((48, 64, 200, 512))),
        "max_model_len": chance.choice((LONGEST + 16, 512)),
        "enable_prefix_caching": chance.random() < 0.6,
    }
    if chance.random() < 0.5:
        options["long_prefill_token_threshold"] = chance.choice((7, 33, 129))
    return options


def _prompts(chance: random.Random, pair: Pair, longest: int) -> list[list[int]]:
    """Texts of any length, some of them with a beginning in common, some the same again."""
    from tests.support import reference
    from tests.support.prompts import deck_prompts, text_prompts

    directory = model_directory(pair.reference)
    ids = reference.token_ids(directory, " ".join([*text_prompts(), *deck_prompts(4)] * 3))
    common = ids[1 : 1 + chance.choice((0, BLOCK, 2 * BLOCK + 5))]
    found: list[list[int]] = []
    for _ in range(chance.randint(1, 7)):
        if found and chance.random() < 0.2:
            found.append(chance.choice(found))
            continue
        length, start = chance.randint(1, LONGEST), chance.randrange(1, 400)
        begun = common if chance.random() < 0.5 else []
        prompt = [ids[0], *begun, *ids[start : start + length]]
        found.append(prompt[: min(LONGEST, longest - 2)])
    return found
