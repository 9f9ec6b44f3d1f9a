# SPDX-License-Identifier: Apache-2.0
"""Numbers of accepted tokens follow requests whose rows move in the batch.

The next step goes back to the state behind the last accepted token. Whoever gets the number of
another request goes on from another token's state: wrong tokens, or fewer accepted ones.
"""

import pytest

from tests.emulated.drafting import probes
from tests.support import programs, speculation
from tests.support.loop_judgement import accepted_by_loops
from tests.support.pairs import prompts_of, scenario
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

K = 3
LENGTHS = (30, 10, 61, 6, 14, 46, 8, 9, 118, 21, 3, 12)
TOKENS = (4, 40, 7, 60, 11, 5, 30, 18, 19, 25, 6, 33)
"""The row of a request that ends is taken by the last one, or by a new one."""
GREEDY = {"temperature": 0.0, "ignore_eos": True, "detokenize": False}


@pytest.mark.host("0.23", cases=["v1-*"])
@pytest.mark.nightly("other cases of it stay", cases=["v2-*"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["in-turn", "ahead"])
@each_runner
def test_rows_move_at_the_end_of_each_request(asynchronous, runner):
    """Of unlike lengths, and more than run at once; states are kept at ends of blocks besides."""
    target, head = model_directory("qwen3_next"), model_directory("qwen3_next_mtp")
    drafter = speculation.DraftHead(head, target)
    prompts = prompts_of("qwen3_next", LENGTHS)
    outputs = [
        speculation.draft_and_verify(target, drafter, prompt, K, number)
        for prompt, number in zip(prompts, TOKENS, strict=True)
    ]
    assert all(output.decided for output in outputs)
    limits = {
        "async_scheduling": asynchronous,
        "enable_prefix_caching": True,
        "max_num_batched_tokens": 192,
        "max_num_seqs": 5,
    }
    case = scenario(
        "qwen3_next_mtp", "qwen3_next_mtp", speculative={"method": "mtp"}, engine=limits
    )
    requests = [
        {"prompt": prompt, "sampling": {**GREEDY, "max_tokens": number}}
        for prompt, number in zip(prompts, TOKENS, strict=True)
    ]
    asked = {"engine": case.engine_arguments(), "requests": requests}
    answer = programs.answer_of(probes.parameters, asked, runner)
    assert [each["tokens"][0] for each in answer["answers"]] == [one.tokens for one in outputs]
    assert answer["accepted"] == accepted_by_loops(outputs)
