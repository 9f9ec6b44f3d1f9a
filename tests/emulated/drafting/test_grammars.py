# SPDX-License-Identifier: Apache-2.0
"""Grammars beside drafts, with asynchronous scheduling and without: JSON schemas, expressions.

The judge is an engine without a draft, whose tokens must be the same, and the grammar itself. With
asynchronous scheduling the grammar sees drafts only when their verification is prepared.
"""

import json
import re

import pytest

from tests.emulated.drafting import probes
from tests.support import engine, hosts, programs, prompts, reference
from tests.support.pairs import TIES, scenario
from tests.support.stages import STAGES
from tests.support.stock import RUNNER_V2
from tests.support.tiny_models import model_directory
from tests.support.tiny_models.tokenizer import EOS_TOKEN_ID

TARGET, DRAFT = "llama_target", "gemma3_draft"
K, MOST_TOKENS = 3, 80
WORDS = ["settle", "set", "sunday"]
SCHEMA = {
    "type": "object",
    "properties": {
        "word": {"enum": WORDS},
        "sure": {"type": "boolean"},
        "text": {"type": "string", "pattern": "^[a-z ]{24}$"},
    },
    "required": ["word", "sure", "text"],
    "additionalProperties": False,
}
LETTERS = "[a-z ]{20}[.]"

V2 = hosts.only_on("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")
SETTINGS = [
    pytest.param(({}, False), id="v1"),
    pytest.param(({}, True), id="v1-async"),
    pytest.param((RUNNER_V2, False), id="v2", marks=V2),
    pytest.param((RUNNER_V2, True), id="v2-async", marks=V2),
]


def requests():
    """Rows of both grammars and without one, one after another, so that they share batches."""
    ids = [reference.token_ids(model_directory(TARGET), text) for text in prompts.text_prompts()]
    sorts = {"schema": {"json": SCHEMA}, "letters": {"regex": LETTERS}, "plain": None}
    return [
        {"sort": sort, "prompt": prompt, "grammar": grammar, "max_tokens": MOST_TOKENS}
        for prompt in ids[4:7]
        for sort, grammar in sorts.items()
    ]


def answer_of(draft, variables, *, asynchronous, **options):
    """``options``: further arguments of the engine."""
    case = scenario(
        TARGET,
        draft,
        num_speculative_tokens=K,
        environment=variables,
        engine={
            **options,
            "skip_tokenizer_init": False,
            "max_num_seqs": 6,
            "async_scheduling": asynchronous,
            "structured_outputs_config": {
                "backend": "xgrammar",
                "disable_any_whitespace": True,
            },
        },
    )
    asked = {"engine": case.engine_arguments(), "adapters": [], "requests": requests()}
    return programs.answer_of(probes.requests, asked, variables)


@pytest.fixture(scope="module")
def without_draft():
    """Tokens of each request."""
    return answer_of(None, {}, asynchronous=False)["tokens"]


def obeys(sort, tokens):
    if sort == "plain":
        return len(tokens) == MOST_TOKENS
    assert tokens[-1] == EOS_TOKEN_ID
    text = bytes(tokens[:-1]).decode()
    if sort == "letters":
        return re.fullmatch(LETTERS, text) is not None
    found = json.loads(text)
    pattern = SCHEMA["properties"]["text"]["pattern"]
    return (
        list(found) == SCHEMA["required"]
        and found["word"] in WORDS
        and isinstance(found["sure"], bool)
        and re.fullmatch(pattern, found["text"]) is not None
    )


def accepted_of(sort, answer):
    """Draft tokens of these requests that the target took over: known with each proposal."""
    accepted = 0
    for request, tokens in zip(requests(), answer["tokens"], strict=True):
        whole = [*request["prompt"], *tokens]
        for proposal in answer["proposals"] if request["sort"] == sort else ():
            start = len(proposal["context"])
            if start > len(request["prompt"]) and whole[:start] == proposal["context"]:
                accepted += whole[start] == proposal["tokens"][0] if start < len(whole) else 0
    return accepted


@pytest.mark.core(cases=["*-async"])
@pytest.mark.host("0.23", cases=["v1-*", "v2"])
@pytest.mark.nightly("other cases of it stay", cases=["v1"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_tokens_are_those_without_a_draft(setting, without_draft):
    variables, asynchronous = setting
    answer = answer_of(DRAFT, variables, asynchronous=asynchronous)
    assert_tokens(answer, without_draft)
    if not asynchronous:  # else the scheduler is told no draft of the requests without a grammar
        assert_drafts_are_the_drafts_own(answer)


@V2
def test_over_pipeline_stages(without_draft):
    """On model runner V2, where a grammar sees drafts of a step two steps ago."""
    answer = answer_of(DRAFT, RUNNER_V2, asynchronous=True, **STAGES)
    assert_tokens(answer, without_draft)
    assert_drafts_are_the_drafts_own(answer)


def assert_tokens(answer, without_draft):
    """Tokens obey each grammar and are those without a draft, some of which were drafted."""
    for request, tokens in zip(requests(), answer["tokens"], strict=True):
        assert obeys(request["sort"], tokens), (request["sort"], tokens)
    assert answer["tokens"] == without_draft
    assert sum(answer["accepted_per_position"]) > 0.3 * answer["num_drafts"] > 20
    # A step that gives nothing less than one token each: fewer steps than tokens say the same.
    assert answer["num_drafts"] < sum(map(len, answer["tokens"])) - len(answer["tokens"])


def assert_drafts_are_the_drafts_own(answer):
    """Every draft token, whether its grammar takes it or not."""
    assert accepted_of("schema", answer) > 10
    proposals = [reference.DraftProposal(**proposal) for proposal in answer["proposals"]]
    near_tie, _ = TIES[engine.compared_dtype()]
    report = reference.check_drafts(model_directory(DRAFT), proposals, near_tie)
    assert report.checked == K * len(proposals) > 100
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
