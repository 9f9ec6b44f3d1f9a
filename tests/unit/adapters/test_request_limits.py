# SPDX-License-Identifier: Apache-2.0
"""What a request may ask for: each field of ``SamplingParams`` is honoured or refused."""

import ast
import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.async_llm import AsyncLLM

from mkv_ascend.adapters.common.request_limits import (
    limit_requests,
    refuse_numbers,
    refuse_prompts_in_parts,
    refuse_sampling,
)
from tests.support import hosts

ROOT = Path(__file__).resolve().parents[3]
INFINITE, NONE = float("inf"), float("nan")
PARAMETERS = "tests/emulated/drafting/test_drafting_parameters.py"
HOSTILE = "tests/emulated/drafting/test_hostile_requests.py"
SAMPLED = {
    "presence_penalty": f"{PARAMETERS}::test_penalties",
    "frequency_penalty": f"{PARAMETERS}::test_penalties",
    "repetition_penalty": f"{PARAMETERS}::test_penalties",
    "temperature": "tests/emulated/drafting/test_drafting_reference.py"
    "::test_tokens_are_distributed_as_the_target_says",
    "seed": f"{HOSTILE}::test_a_seed_draws_the_same_tokens_beside_requests_that_verify_drafts",
    "top_p": f"{HOSTILE}::test_no_number_of_a_request_reaches_another",
    "top_k": f"{HOSTILE}::test_no_number_of_a_request_reaches_another",
    "stop_token_ids": f"{PARAMETERS}::test_an_answer_of_at_least_so_many_tokens",
    "_all_stop_token_ids": f"{PARAMETERS}::test_an_answer_of_at_least_so_many_tokens",
    "min_tokens": f"{PARAMETERS}::test_an_answer_of_at_least_so_many_tokens",
    "logprobs": f"{PARAMETERS}::test_logprobs",
    "prompt_logprobs": f"{PARAMETERS}::test_prompt_logprobs",
    "structured_outputs": "tests/emulated/drafting/test_grammars.py"
    "::test_tokens_are_those_without_a_draft",
    "allowed_token_ids": f"{PARAMETERS}::test_allowed_tokens",
    "bad_words": f"{PARAMETERS}::test_what_counts_tokens_with_asynchronous_scheduling",
    "_bad_words_token_ids": f"{PARAMETERS}::test_what_counts_tokens_with_asynchronous_scheduling",
}
"""Read by the batch or the samplers: the test that shows it beside a draft."""
SCHEDULED = {
    *("ignore_eos", "max_tokens", "_eos_token_id", "repetition_detection", "extra_args"),
    *("skip_reading_prefix_cache", "routed_experts_prompt_start"),
}
"""Read by vLLM's scheduler, token by token, whoever samples."""
IN_FRONT = {
    *("n", "stop", "flat_logprobs", "detokenize", "skip_special_tokens", "output_kind"),
    *("spaces_between_special_tokens", "include_stop_str_in_output", "skip_clone"),
    *("output_text_buffer_length", "stream_interval"),
}
"""Read by the front process, which has the tokens."""
BY_OPTION = {"watermarking"}
"""Of no effect unless ``--watermark-config`` is given, which vLLM has on model runner V2 alone."""
REFUSED_BY_VLLM: dict[str, Any] = {
    "min_p": 0.2,
    "logit_bias": {5: 1.0},
    "trace_decode_token_ids": [5],
}
"""Beside drafts."""
REFUSED: dict[str, Any] = {"logprob_token_ids": [5]}
"""Beside drafts, by us."""
if not hosts.ADAPTER.RULES.thinking_budgets:
    REFUSED["thinking_token_budget"] = 4
else:
    SAMPLED["thinking_token_budget"] = ""  # vLLM's, which vllm-ascend's batch has there
FIELDS = SamplingParams.__struct_fields__


def config(*, drafts: bool = True, vocabulary: int = 100) -> Any:
    """As much of vLLM's as is read."""
    model = SimpleNamespace(max_model_len=64, get_vocab_size=lambda: vocabulary)
    return SimpleNamespace(model_config=model, speculative_config=object() if drafts else None)


def test_each_field_is_honoured_or_refused() -> None:
    kinds = (set(SAMPLED), SCHEDULED, IN_FRONT, BY_OPTION, {*REFUSED, *REFUSED_BY_VLLM})
    assert sum(map(len, kinds)) == len(set.union(*kinds))
    assert set(FIELDS) <= set.union(*kinds)
    for named in filter(None, SAMPLED.values()):
        file, _, function = named.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        assert function in {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}


@pytest.mark.parametrize("field", REFUSED)
def test_what_is_dropped_beside_drafts_is_refused_there_alone(field: str) -> None:
    params = SamplingParams(**{field: REFUSED[field]})
    with pytest.raises(VLLMValidationError, match=rf"(?s){field}.*Possible.*Change"):
        refuse_sampling(params, 8, config())
    refuse_sampling(params, 8, config(drafts=False))


@pytest.mark.parametrize("value", [NONE, INFINITE, -INFINITE, 1e300, 10**400])
@pytest.mark.parametrize(
    "field", [name for name in FIELDS if isinstance(getattr(SamplingParams(), name), float)]
)
def test_numbers_that_float32_does_not_hold_are_refused(field: str, value: float) -> None:
    params = SamplingParams()
    setattr(params, field, value)
    with pytest.raises(VLLMValidationError, match=rf"(?s){field}.*Possible.*Change"):
        refuse_numbers({}, params)


def test_numbers_are_looked_for_in_biases_and_embeddings() -> None:
    params = SamplingParams(logit_bias={5: NONE})
    with pytest.raises(VLLMValidationError, match="logit_bias"):
        refuse_numbers({}, params)
    embeddings = torch.ones(4, 8)
    refuse_numbers({"prompt_embeds": embeddings}, SamplingParams(temperature=2.0, top_k=-1))
    embeddings[2, 3] = INFINITE
    for inputs in {"prompt_embeds": embeddings}, {"decoder_prompt": {"prompt_embeds": embeddings}}:
        with pytest.raises(VLLMValidationError, match="prompt_embeds"):
            refuse_numbers(inputs, SamplingParams())


@pytest.mark.parametrize(
    "fields",
    [
        {"stop_token_ids": [100], "min_tokens": 2},
        {"stop_token_ids": [-1], "min_tokens": 2},
        {"allowed_token_ids": [5, 100]},
        {"min_tokens": 57, "max_tokens": 57},
    ],
)
def test_what_would_end_the_engine_or_never_end_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(VLLMValidationError, match=r"(?s)Possible.*Change"):
        refuse_sampling(SamplingParams(**fields), 8, config(drafts=False))


@pytest.mark.parametrize("name", ["prompt_token_ids", "prompt_embeds"])
def test_a_prompt_takes_room_of_the_context(name: str) -> None:
    params = SamplingParams(min_tokens=57, max_tokens=57)
    given = {"prompt_token_ids": None, "prompt_embeds": None, name: torch.ones(7)}
    request = SimpleNamespace(sampling_params=params, **given)
    processor = SimpleNamespace(vllm_config=config())
    limit = next(iter(limit_requests.functions.values()))
    assert limit(lambda _: request, processor) is request
    setattr(request, name, torch.ones(8))
    with pytest.raises(VLLMValidationError, match="min_tokens"):
        limit(lambda _: request, processor)


@pytest.mark.skipif("v2" not in hosts.ADAPTER.RUNNERS, reason="there is no model runner V2")
@pytest.mark.parametrize(
    "fields",
    [
        {"seed": 2**63},
        {"allowed_token_ids": [5] * 1025},
        {"logit_bias": dict.fromkeys(range(1025), 1.0)},
        {"stop_token_ids": list(range(129)), "min_tokens": 2},
        {"_bad_words_token_ids": [[5] * 1025]},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_model_runner_v2_has_no_room_for_is_refused(fields: dict[str, Any]) -> None:
    params = SamplingParams(**fields)
    asked = config(drafts=False, vocabulary=2000)
    refuse_sampling(params, 8, asked)
    asked.use_v2_model_runner = True
    with pytest.raises(VLLMValidationError, match=r"(?s)Possible.*V2.*Change"):
        refuse_sampling(params, 8, asked)


@pytest.mark.parametrize(
    "fields",
    [
        {"stop_token_ids": [99, 0], "min_tokens": 56, "max_tokens": 56},
        {"stop_token_ids": [100]},
        {"allowed_token_ids": [0, 99], "logprobs": 5, "prompt_logprobs": 2},
        {"temperature": 0.0, "repetition_penalty": 1e-3, "seed": 2**63 - 1},
    ],
)
def test_what_works_is_not_refused(fields: dict[str, Any]) -> None:
    params = SamplingParams(**fields)
    refuse_numbers({"prompt_token_ids": [1]}, params)
    refuse_sampling(params, 8, config())


class Engine:
    """As much of ``AsyncLLM`` as takes a request."""

    errored = False

    def __init__(self, speculative: object) -> None:
        self.vllm_config = SimpleNamespace(
            speculative_config=speculative,
            cache_config=SimpleNamespace(kv_sharing_fast_prefill=False),
        )
        self.taken: list[Any] = []

    async def _took(self, *args: Any) -> str:
        self.taken.append(args)
        return "a queue"

    async def _add_streaming_input_request(self, *args: Any) -> Any:
        (function,) = refuse_prompts_in_parts.functions.values()
        return await function(type(self)._took, self, *args)


async def _parts() -> Any:
    yield "a part"


def asked(engine: Any) -> Any:
    """What vLLM's own ``add_request`` makes of a prompt in parts."""
    return asyncio.run(AsyncLLM.add_request(engine, "one", _parts(), SimpleNamespace(n=1)))


def test_a_prompt_in_parts_is_refused_beside_a_draft() -> None:
    engine = Engine(speculative=object())
    with pytest.raises(VLLMValidationError, match=r"in parts.*Send the whole prompt"):
        asked(engine)
    assert not engine.taken


def test_it_is_vllms_own_without_a_draft() -> None:
    engine = Engine(speculative=None)
    assert asked(engine) == "a queue"
    assert len(engine.taken) == 1
