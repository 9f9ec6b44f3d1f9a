# SPDX-License-Identifier: Apache-2.0
"""Commands of published models and mistakes: what check says, and what vLLM itself says of them.

``tests/data/commands.json`` has the words behind ``vllm serve``. ``draft:METHOD:K:NAME`` stands for
``--speculative-config``, ``{NAME}`` and a first word for a published model's folder.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.support import hosts
from tests.support.command_judge import Judge, folders, judge

# Commands drawn at random: a published model, ranks, a draft by some method, options.
#
# In the words of ``tests/data/commands.json``.


TARGETS = (
    *("Llama-3.1-8B-Instruct", "Llama-3.3-70B-Instruct", "Qwen2.5-72B-Instruct", "Qwen3-0.6B"),
    *("Qwen3-8B", "Qwen3-14B", "Qwen3-32B", "Qwen3-30B-A3B", "Qwen3-Next-80B-A3B-Instruct"),
    *("DeepSeek-V2-Lite-Chat", "DeepSeek-V3-bf16", "gpt-oss-20b", "gpt-oss-20b-bf16"),
    *("granite-4.0-h-small", "granite-4.0-h-1b", "Nemotron-H-8B", "gemma-3-27b-it", "LFM2-1.2B"),
    *("Mixtral-8x7B-Instruct-v0.1", "GLM-4.5-Air"),
)
DRAFTS = (
    *("Llama-3.2-1B-Instruct", "Qwen2.5-0.5B-Instruct", "Qwen3-0.6B", "Qwen3-1.7B"),
    *("EAGLE3-LLaMA3.1-Instruct-8B", "Qwen3-32B_eagle3", "granite-4.0-h-1b", "LFM2-1.2B"),
)
METHODS = ("draft_model", "eagle3", "eagle", "mtp", "ngram", "suffix", "dflash")
OPTIONS: tuple[tuple[str, ...], ...] = (
    ("--enforce-eager",),
    ("--async-scheduling",),
    ("--no-async-scheduling",),
    ("--no-enable-prefix-caching",),
    ("--no-enable-chunked-prefill",),
    ("--enable-expert-parallel",),
    ("--enable-lora",),
    ("--max-model-len", "4096"),
    ("--max-model-len", "auto"),
    ("--max-model-len", "10m"),
    ("--max-num-seqs", "4"),
    ("--max-num-batched-tokens", "64"),
    ("--max-num-batched-tokens", "16384"),
    ("--block-size", "64"),
    ("--block-size", "256"),
    ("--dtype", "float16"),
    ("--dtype", "float32"),
    ("--kv-cache-dtype", "fp8"),
    ("--kv-cache-memory-bytes", "2g"),
    ("--gpu-memory-utilization", "0.2"),
    ("--gpu-memory-utilization", "1.2"),
    ("--num-gpu-blocks-override", "64"),
    ("--quantization", "ascend"),
    ("--compilation-config", '{"cudagraph_mode": "FULL"}'),
    ("--compilation-config", '{"cudagraph_mode": "FULL_DECODE_ONLY"}'),
    ("--compilation-config", '{"cudagraph_mode": "PIECEWISE"}'),
    ("--additional-config", '{"enable_flashcomm1": true}'),
    ("--additional-config", '{"mkv_ascend": {"attention": {"draft": "FIA"}}}'),
    ("--additional-config", '{"mkv_ascend": {"layout": {"shared_pages": false}}}'),
    ("--disable-hybrid-kv-cache-manager",),
    ("--load-format", "dummy"),
    ("--api-server-count", "2"),
    ("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)
RANKS = (1, 1, 1, 2, 2, 4, 8)


def drawn(number: int) -> list[str]:
    """Words behind ``vllm serve``: the same ones for one number."""
    draw = random.Random(number)
    words = [draw.choice(TARGETS), "-tp", str(draw.choice(RANKS))]
    for option in ("-pp", "-dp", "-dcp"):
        if draw.random() < 0.12:
            words += [option, "2"]
    if draw.random() < 0.7:
        words += _draft(draw)
    for chosen in draw.sample(OPTIONS, draw.choice((0, 0, 1, 1, 2, 3))):
        words += chosen
    return words


def _draft(draw: random.Random) -> list[str]:
    method = draw.choice(METHODS)
    tokens = draw.choice((1, 2, 3, 3, 5, 8, 15, 16))
    if method == "ngram":
        given = {"method": method, "num_speculative_tokens": tokens, "prompt_lookup_max": 4}
        return ["--speculative-config", json.dumps(given)]
    own = method in ("mtp", "suffix")
    return [f"draft:{method}:{tokens}:{'' if own else draw.choice(DRAFTS)}"]


pytestmark = pytest.mark.slow

__all__ = ["folders", "judge"]
TABLE = json.loads((Path(__file__).resolve().parents[2] / "data" / "commands.json").read_text())
SERVED, UNREADABLE, REFUSED = (TABLE[kind] for kind in ("served", "unreadable", "refused"))
WHILE_MODELS_ARE_BUILT = {
    "an unknown loader",
    "a matrix of fewer rows than none",
    "experts in each zeroth layer",
}
"""What vLLM refuses behind the configuration."""


OTHERWISE_ON_0_30 = {
    "a draft over shares of prompts": "vllm-ascend 0.30.0rc2 has no prefill context parallelism",
    "a layer pattern that transformers does not read": "its transformers reads the pattern",
    "steps that hold no request": "vLLM 0.30.0 lets chunks of a prompt be as short",
    "no room beside drafts": "vLLM 0.30.0 lets chunks of a prompt be as short",
    "an unknown parser of thoughts": "vLLM 0.30.0 asks for the tokenizer first",
}


def skip_where_otherwise(name: str) -> None:
    """Leave out what the second host judges otherwise than the table has it."""
    if hosts.NAME == "vllm_ascend_0_30" and name in OTHERWISE_ON_0_30:
        pytest.skip(OTHERWISE_ON_0_30[name])


@pytest.mark.host("0.23")
@pytest.mark.parametrize("name", SERVED)
def test_what_is_served_is_told_with_its_memory(name: str, judge: Judge) -> None:
    """That vLLM makes a configuration of it, too, is a part of the answer."""
    skip_where_otherwise(name)
    found = judge.ask(SERVED[name])
    assert found["answer"] == "served", found
    assert found["unplanned"] == ""
    assert found["requests"] >= 1
    assert 0 < found["weight_bytes"] < 64 << 30


@pytest.mark.host("0.23")
@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_said_in_vllms_words(name: str, judge: Judge) -> None:
    words, says = UNREADABLE[name]
    found = judge.ask(words)
    assert found["answer"] == "unreadable"
    assert says in found["problem"]


@pytest.mark.host("0.23")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_served_is_refused(name: str, judge: Judge) -> None:
    skip_where_otherwise(name)
    words, code, says = REFUSED[name]
    found = judge.ask(words)
    assert found["answer"] == "refused", found
    assert not code or code in [refusal["code"] for refusal in found["refusals"]]
    assert says in json.dumps(found["refusals"], ensure_ascii=False)
    assert "Traceback" not in json.dumps(found)


@pytest.mark.host("0.23")
@pytest.mark.parametrize("name", [name for name, row in REFUSED.items() if row[1] != "memory"])
def test_words_of_the_host_are_told_where_it_refuses(name: str, judge: Judge) -> None:
    skip_where_otherwise(name)
    words, code, _ = REFUSED[name]
    theirs = judge.ask(words, raw=True)
    if theirs["answer"] == "served" and name not in WHILE_MODELS_ARE_BUILT:
        found = judge.ask(words)
        assert "host" not in [refusal["code"] for refusal in found["refusals"]]
        assert code != "host"


@pytest.mark.host("0.23")
def test_weights_are_those_of_the_model_cards(judge: Judge) -> None:
    """Parameters that the publishers state, in 16 bits, over the ranks of the command."""
    billions = {"Qwen3-0.6B": (0.596, 1), "Llama-3.1-8B": (8.03, 1), "DeepSeek-V2-Lite": (15.7, 1)}
    billions |= {"Mixtral": (46.7, 4), "Qwen3-Next": (79.7, 4)}
    for name, (number, ranks) in billions.items():
        found = judge.ask(SERVED[name])["weight_bytes"] * ranks / 2e9
        assert found == pytest.approx(number, rel=0.03), name


# Commands drawn at random: what check serves, vLLM and vllm-ascend make a configuration of.
COUNT = 200
LEAST_OF_EACH = 20


@pytest.mark.nightly("200 commands take ten minutes")
@pytest.mark.parametrize("number", range(COUNT))
def test_check_serves_nothing_that_the_host_refuses(number: int, judge: Judge) -> None:
    """What is served was made by ``create_engine_config``; the rest is said without a traceback."""
    words = drawn(number)
    found = judge.ask(words)
    assert found["answer"] in ("served", "refused", "unreadable"), words
    assert "Traceback" not in json.dumps(found), words
    for refusal in found.get("refusals", ()):
        assert all(refusal[part] for part in ("code", "asked", "possible", "change")), words
    if found["answer"] == "refused":
        theirs, codes = judge.ask(words, raw=True), {one["code"] for one in found["refusals"]}
        # Of a host's words alone it is the host that refuses, by a statement of its own.
        assert theirs["answer"] == "refused" or codes != {"host"}, (words, found)


@pytest.mark.nightly("200 commands take ten minutes")
def test_some_are_served_and_some_refused(judge: Judge) -> None:
    said = [judge.ask(drawn(number))["answer"] for number in range(COUNT)]
    assert min(said.count("served"), said.count("refused")) >= LEAST_OF_EACH
