# SPDX-License-Identifier: Apache-2.0
"""Requests that ask for what no batch can hold are refused, and none reaches the others.

One engine per model runner. The judge of tokens is Hugging Face in float32.
"""

import pytest

from tests.emulated.drafting import probes
from tests.support import programs
from tests.support.models.random_models import write_llama
from tests.support.pairs import assert_greedy
from tests.support.stock import RUNNERS

TOKENS, K, LONGEST = 16, 3, 256
PROMPTS = [[256, *((7 * row + 3 * at) % 250 for at in range(10 + 5 * row))] for row in range(4)]
INFINITE, NONE = float("inf"), float("nan")
GREEDY = [{}, {"temperature": 1.5, "top_k": 1}, {"temperature": 1.5, "top_p": 1e-6}, {}]
"""What leaves each judged request one token to draw."""
VALUES = [["temperature", NONE], ["temperature", INFINITE], ["repetition_penalty", NONE]]
"""Written into requests behind the refusals."""
REFUSED = [
    {"temperature": NONE},
    {"temperature": INFINITE},
    {"temperature": 1e300},
    {"repetition_penalty": NONE},
    {"repetition_penalty": INFINITE},
    {"repetition_penalty": 1e300},
    {"min_tokens": LONGEST, "max_tokens": LONGEST},
    {"stop_token_ids": [100000], "min_tokens": 4},
    {"stop_token_ids": [-1], "min_tokens": 4},
    {"allowed_token_ids": [100000]},
    {"logprob_token_ids": [1, 2]},
    {"logit_bias": {"5": INFINITE}},
    {"min_p": 0.2, "temperature": 1.0},
]
SERVED = [{"stop_token_ids": [5], "min_tokens": 4}, {"allowed_token_ids": [5]}, {"logprobs": 2}]


@pytest.fixture(scope="module", params=RUNNERS)
def session(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    target = write_llama(folder / "target")
    speculation = {"method": "draft_model", "num_speculative_tokens": K}
    speculation["model"] = write_llama(folder / "draft", noise=0.003)
    engine = {"model": target, "dtype": "float32", "enforce_eager": True, "max_num_seqs": 10}
    engine |= {"max_model_len": LONGEST, "num_gpu_blocks_override": 64, "seed": 0}
    engine["disable_log_stats"] = False
    engine |= {"speculative_config": speculation, "enable_prefix_caching": False}
    asked = {"engine": engine, "prompts": PROMPTS, "tokens": TOKENS, "values": VALUES}
    asked["greedy"] = GREEDY
    answer = programs.answer_of(
        probes.hostile, {**asked, "refused": [*REFUSED, *SERVED]}, request.param
    )
    return {**answer, "target": target}


@pytest.mark.core
def test_no_number_of_a_request_reaches_another(session):
    assert_greedy(session["target"], PROMPTS, session["tokens"], TOKENS, "float32")
    assert session["accepted"] > 0.1 * K * session["drafts"] > 10


def test_a_seed_draws_the_same_tokens_beside_requests_that_verify_drafts(session):
    assert len(session["alone"]) == TOKENS
    assert session["beside"] == session["alone"]


def test_what_is_not_served_is_refused_and_nothing_else(session):
    refused = dict(zip(map(str, [*REFUSED, *SERVED]), session["refused"], strict=True))
    for fields in REFUSED:
        said = refused[str(fields)]
        # What vLLM's server answers with status 400.
        assert said.startswith(("VLLMValidationError", "ValueError")), (fields, said)
    assert [refused[str(fields)] for fields in SERVED] == ["accepted"] * len(SERVED)
