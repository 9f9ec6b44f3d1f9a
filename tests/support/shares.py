# SPDX-License-Identifier: Apache-2.0
"""What tests share where ranks share the keys of each sequence (decode context parallelism)."""

from __future__ import annotations

from typing import Any

from tests.support import engine, prompts, reference, speculation
from tests.support.loop_judgement import REFERENCE_OF
from tests.support.pairs import (
    TIES,
    assert_drafts_are_the_drafts_own,
    assert_greedy,
    assert_greedy_tokens_of_reference,
    prompts_of,
    scenario,
)
from tests.support.tiny_models import model_directory

RANKS = {"tensor_parallel_size": 2, "decode_context_parallel_size": 2}
ONE_KEY_HEAD = "llama_one_key_head"
WITH_MTP = "deepseek_v3_mtp"
WITH_SPARSE_MTP = "deepseek_v32_mtp"
LENGTHS = [5, 60, 127, 128, 130, 200, 256, 259]
"""Up to, at and beyond the end of a block, and of all ranks' blocks with one id."""
IN_GRAPHS: dict[str, Any] = {"graphs": "FULL_DECODE_ONLY", "capture_sizes": (4, 12, 24)}
"""For 1, 3 and 6 requests, so that batches are on, between and past them."""


def judged(case: engine.Scenario, result: engine.Result) -> None:
    """Every token is the target's, and every draft token the draft's own."""
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)


def of_a_head(model: str = WITH_MTP, **fields: Any) -> tuple[engine.Scenario, engine.Result]:
    """Run an MLA target with its own MTP layer."""
    values = {"prompts": prompts_of(model, [5, 130, 261]), "speculative": {"method": "mtp"}}
    case = scenario(model, model, **{**values, **fields})
    return case, engine.run(case)


def judged_on_decks(**fields: Any) -> engine.Result:
    """The same with prompts of decks, where each drafted letter needs the keys of all before it."""
    decks = prompts.deck_prompts(6)
    ids = [reference.token_ids(model_directory(WITH_MTP), text) for text in decks]
    case, result = of_a_head(prompts=ids, max_tokens=14, **fields)
    assert _judged_by_mtp(case, result, WITH_MTP) > 90
    return result


def judged_by_the_head(
    result: engine.Result, draft: str = WITH_MTP, source: str = REFERENCE_OF[WITH_MTP]
) -> reference.DraftReport:
    """What the head on the target ``source`` says of every draft token."""
    head = speculation.DraftHead(model_directory(draft), model_directory(source))
    near_tie, _ = TIES[engine.compared_dtype()]
    return reference.judge(head.rows, result.proposals, near_tie)


def judged_as_a_head(result: engine.Result, *names: str) -> int:
    """Every draft token is the head's own; returns how many there were."""
    report = judged_by_the_head(result, *names)
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
    return report.checked


def judged_with_mtp(case: engine.Scenario, result: engine.Result, model: str = WITH_MTP) -> None:
    """Every token is the target's, and every draft token that of its MTP layer."""
    assert _judged_by_mtp(case, result, model) > 60
    assert result.mean_acceptance_length > 2


def _judged_by_mtp(case: engine.Scenario, result: engine.Result, model: str) -> int:
    source = REFERENCE_OF[model]
    assert_greedy(
        model_directory(source), case.prompts * case.repeats, result.tokens, case.max_tokens
    )
    return judged_of_three(result, model, source)


def judged_of_three(result: engine.Result, *names: str) -> int:
    """As ``judged_as_a_head``, of proposals of three tokens, of which none is left out."""
    checked = judged_as_a_head(result, *names)
    assert checked == 3 * len(result.proposals)
    return checked
