# SPDX-License-Identifier: Apache-2.0
"""Drafts judged by draft-and-verify in plain Hugging Face loops: every proposal, what is accepted.

An engine must do exactly what the loops do: propose the same tokens after the same contexts and
accept as many of them at each position. The prompts have no near ties among their choices: there
another order of summation may rightly choose otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support import engine, prompts, reference, speculation
from tests.support.draft_windows import WindowedDraft
from tests.support.pairs import assert_greedy, scenario
from tests.support.tiny_models import model_directory
from tests.support.tiny_models.recipe import AssistantRecipe
from tests.support.tiny_models.recipes import find_recipe

NUM_PROMPTS, FEWEST_PROMPTS = 8, 5
NEW_TOKENS = 28
# Few blocks and requests at a time, so that blocks are used again soon; prompts in chunks, beside
# requests that decode.
SMALL_ENGINE = {"max_num_seqs": 2, "num_gpu_blocks_override": 20, "max_num_batched_tokens": 64}
# A head keeps a key of the last token of each chunk and of the one after it, which was not sampled
# yet: with short chunks there are so many of them that a wrong one shows.
SHORT_CHUNKS = {"long_prefill_token_threshold": 7}
# Each of the target's two groups of states takes K + 1 blocks for a request.
WITH_STATES = {"max_num_seqs": 2, "num_gpu_blocks_override": 36}


# The MTP checkpoints hold these targets' weights; transformers has no MTP layers.
REFERENCE_OF = {
    "deepseek_v3_mtp": "deepseek_v2_target",
    "deepseek_v32_mtp": "deepseek_v32_target",
    "glm4_moe_wide_mtp": "glm4_moe_wide",
    "qwen3_next_mtp": "qwen3_next",
}

PAIRS = [
    ("gemma3", "gemma3_draft", "draft_model", 3),
    ("gpt_oss", "gpt_oss_draft", "draft_model", 4),
    ("gemma3_alternating", "gemma3_alternating_perturbed", "draft_model", 5),
    ("llama_target", "deepseek_v2_draft", "draft_model", 3),
    ("deepseek_v2_target", "deepseek_v2_draft", "draft_model", 2),
    ("llama_target", "llama_eagle", "eagle", 2),
    ("llama_target", "llama_eagle3", "eagle3", 3),
    ("gpt_oss", "gpt_oss_eagle3", "eagle3", 3),
    ("deepseek_v3_mtp", "deepseek_v3_mtp", "mtp", 3),
    ("gpt_oss", "gpt_oss_dflash", "dflash", 3),
    ("granite4", "granite4_dflash", "dflash", 3),
    ("lfm2", "lfm2_dflash", "dflash", 3),
    ("qwen3_next", "llama_draft", "draft_model", 4),
    ("qwen3_next_mtp", "qwen3_next_mtp", "mtp", 3),
]
"""Target, draft, method and K of pairs that plain loops judge."""


def candidate_prompts(target: Path) -> list[list[int]]:
    """Token ids: texts that fill blocks with keys, then short decks in blocks of those before.

    A step that reads one row too many then reads a true key of another request, not zeros.
    """
    texts = prompts.text_prompts()
    decks = [*prompts.deck_prompts(3), *prompts.deck_prompts(4, letters=6, seed=5)]
    return [reference.token_ids(target, text) for text in [texts[11], texts[8], texts[3], *decks]]


def decided_outputs(
    target: Path, drafter: speculation.Drafter, k: int
) -> list[tuple[list[int], speculation.SpeculativeOutput]]:
    """The candidates whose decoding no near tie decides, and their decoding."""
    decided = []
    for prompt in candidate_prompts(target):
        output = speculation.draft_and_verify(target, drafter, prompt, k, NEW_TOKENS)
        if output.decided:
            decided.append((prompt, output))
    assert len(decided) >= FEWEST_PROMPTS
    return decided[:NUM_PROMPTS]


def drafter_of(target: Path, draft: str, method: str, k: int) -> speculation.Drafter:
    """What judges a draft of this method."""
    if method == "draft_model":
        return speculation.DraftModel(model_directory(draft))
    if method in ("dflash", "dspark"):
        return speculation.DraftBlock(model_directory(draft), target, k)
    if isinstance(find_recipe(draft), AssistantRecipe):
        return speculation.DraftAssistant(model_directory(draft), target)
    return speculation.DraftHead(model_directory(draft), target)


def in_order(
    proposals: Iterable[reference.DraftProposal],
) -> list[tuple[list[int], list[int]]]:
    """Contexts and drafted tokens, whatever the order of requests was."""
    return sorted((proposal.context, proposal.tokens) for proposal in proposals)


def loops_and_engine(
    target: str,
    draft: str,
    method: str,
    k: int,
    environment: Mapping[str, str] | None = None,
    **fields: Any,
) -> tuple[list[speculation.SpeculativeOutput], engine.Result]:
    """What the loops and what an engine did with the prompts that no near tie decides.

    Args:
        environment: variables of the engine's process, for instance of another model runner.
        fields: more of the scenario; ``engine`` adds to the arguments of the engine. The loops'
            draft has the window of ``drafting.window``, too.
    """
    directory = model_directory(REFERENCE_OF.get(target, target))
    drafter = drafter_of(directory, draft, method, k)
    window = fields.get("mkv_ascend", {}).get("drafting", {}).get("window")
    if window is not None:
        drafter = WindowedDraft(drafter, window)
    if sizes := fields.get("capture_sizes"):
        # Larger ones than all requests are left out. Without a graph for both that run at once,
        # only steps with one of them would be replayed, and luck says how many there are.
        fields["capture_sizes"] = tuple(sorted({*sizes, 2 * (k + 1)}))
    decided = decided_outputs(directory, drafter, k)
    outputs = [output for _, output in decided]
    case = scenario(
        target,
        draft,
        prompts=[prompt for prompt, _ in decided],
        max_tokens=NEW_TOKENS,
        num_speculative_tokens=k,
        speculative={"method": method},
        engine={
            **(WITH_STATES if "qwen3_next" in target else SMALL_ENGINE),
            **(SHORT_CHUNKS if method in ("eagle", "eagle3", "mtp") else {}),
            **fields.pop("engine", {}),
        },
        environment=dict(environment or {}),
        **fields,
    )
    return outputs, engine.run(case)


def wrong_tokens(
    outputs: Sequence[speculation.SpeculativeOutput], result: engine.Result, k: int
) -> list[int]:
    """By position: tokens that an engine proposed otherwise than the loops in the same place."""
    wanted = {
        tuple(proposal.context): proposal.tokens
        for output in outputs
        for proposal in output.proposals
    }
    found = {tuple(proposal.context): proposal.tokens for proposal in result.proposals}
    both = wanted.keys() & found.keys()
    assert len(both) > 0.8 * len(wanted), f"{len(both)} of {len(wanted)}"
    return [sum(wanted[one][place] != found[one][place] for one in both) for place in range(k)]


def accepted_by_loops(outputs: Sequence[speculation.SpeculativeOutput]) -> list[int]:
    """Accepted tokens of all prompts by position."""
    by_prompt = [output.accepted_per_position for output in outputs]
    return [sum(accepted) for accepted in zip(*by_prompt, strict=True)]


def assert_decoded_as(
    outputs: Sequence[speculation.SpeculativeOutput], result: engine.Result
) -> None:
    """Tokens, every proposal and what is accepted are the loops'."""
    assert result.tokens == [output.tokens for output in outputs]
    assert in_order(result.proposals) == in_order(
        proposal for output in outputs for proposal in output.proposals
    )
    assert result.accepted_per_position == accepted_by_loops(outputs)


def assert_reference(
    target: str,
    draft: str,
    method: str,
    k: int,
    environment: Mapping[str, str] | None = None,
    **fields: Any,
) -> engine.Result:
    """Run the pair: tokens, every proposal and what is accepted are the loops'."""
    outputs, result = loops_and_engine(target, draft, method, k, environment, **fields)
    expected = accepted_by_loops(outputs)
    of = sum(len(output.proposals) for output in outputs)
    print(f"{target} + {draft}: accepted {expected} per position of {of} proposals")
    assert_decoded_as(outputs, result)
    # Neither a hopeless draft nor one that is never rejected would show much. What a draft is worth
    # differs with the processor that trained it: 22 % and more were seen.
    assert 0.15 * of < expected[0]
    assert expected[-1] < of
    return result


def assert_every_draft_token(
    case: engine.Scenario, drafter: speculation.Drafter, least: int
) -> engine.Result:
    """Run it: tokens are the target's own, and each draft token is what ``drafter`` says.

    Args:
        least: more draft tokens than so many are judged.
    """
    result = engine.run(case)
    assert_greedy(case.model, case.prompts * case.repeats, result.tokens, case.max_tokens)
    report = reference.judge(drafter.rows, result.proposals, speculation.TIE)
    assert not report.wrong, report.wrong[:5]
    assert report.checked > least
    return result
