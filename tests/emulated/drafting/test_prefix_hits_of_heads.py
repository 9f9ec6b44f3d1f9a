# SPDX-License-Identifier: Apache-2.0
"""Prefix hits with drafts that shift their input, and no wrong draft.

The draft's last row of a block is made from the token after it, the first of the next block. So
requests that differ from there on share every row except that one, and the last block of a hit is
computed again. Requests that share that token, too, share the block, where blocks are hashed with
it.
"""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from mkv_ascend.adapters.common.patches import prefix_hits
from tests.support import engine, reference, speculation
from tests.support.pairs import checked_drafts, scenario
from tests.support.prompts import text_prompts as texts
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

BLOCK = 128
STEM = 2 * BLOCK
ENDINGS = 4
# Target, draft, method, the model that Hugging Face runs as the target, and how many tokens behind
# the last block of the stem the requests share.
HEADS = [
    ("gpt_oss", "gpt_oss_eagle3", "eagle3", "gpt_oss", 0),
    ("gpt_oss", "gpt_oss_eagle3", "eagle3", "gpt_oss", 1),
    ("deepseek_v3_mtp", "deepseek_v3_mtp", "mtp", "deepseek_v2_target", 1),
]


@pytest.mark.core(cases=["gpt_oss-gpt_oss_eagle3-eagle3-gpt_oss-1-*"])
@pytest.mark.host("0.23", cases=["*-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["*-0-v2", "*-deepseek_v2_target-1-v2"])
@each_runner
@pytest.mark.parametrize(("target", "draft", "method", "reference_target", "shared"), HEADS)
def test_a_shifted_draft_gives_up_one_block_and_is_right(
    target, draft, method, reference_target, shared, runner
):
    directory = model_directory(reference_target)
    ids = reference.token_ids(directory, " ".join(texts()))
    stems = [ids[:1] + ids[start + 1 : start + STEM + shared] for start in (0, 40)]
    endings = [ids[start : start + 2] for start in range(300, 300 + 7 * ENDINGS, 7)]
    case = scenario(
        target,
        draft,
        # The last one ends with a block, behind which there is no token yet.
        prompts=[*(stem + ending for stem in stems for ending in endings), stems[-1][:STEM]],
        max_tokens=8,
        speculative={"method": method},
        environment=runner,
        # One after another: each request finds the stem of the one before it.
        engine={"enable_prefix_caching": True, "max_num_seqs": 1},
    )
    result = engine.run(case)
    # One wrong row of 256 changes few choices of these drafts: it is the hits that tell.
    # Without a draft a hit is all whole blocks before the last token (test_layout_engines.py).
    lost = 0 if shared else BLOCK
    hits = [0, *[STEM - lost] * (ENDINGS - 1)] * len(stems)
    assert result.cached_tokens == [*hits, BLOCK]

    drafter = speculation.DraftHead(model_directory(draft), directory)
    assert (
        checked_drafts(drafter.rows, result.proposals)
        == case.num_speculative_tokens * len(result.proposals)
        > 0
    )
    assert result.mean_acceptance_length > 1.5


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
@each_runner
def test_where_others_read_hashes_a_hit_ends_a_block_earlier(runner):
    ids = reference.token_ids(model_directory("gpt_oss"), " ".join(texts()))
    case = scenario(
        "gpt_oss",
        "gpt_oss_eagle3",
        prompts=[ids[: STEM + 1] + ids[start : start + 2] for start in (300, 310)],
        max_tokens=2,
        speculative={"method": "eagle3"},
        environment=runner,
        engine={
            "enable_prefix_caching": True,
            "max_num_seqs": 1,
            "kv_events_config": {"enable_kv_cache_events": True, "publisher": "null"},
        },
    )
    assert engine.run(case).cached_tokens == [0, STEM - BLOCK]


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
@each_runner
def test_over_a_trace_as_many_tokens_are_computed_again_as_without_a_draft(runner):
    """Prompts begin alike, and part anywhere except right behind a block.

    Behind that they have bytes that no text has, so that they part there indeed; and no answer of
    4 tokens, which may go on as the text does, fills a block up.
    """
    ids = reference.token_ids(model_directory("llama_target"), " ".join(texts()))[:490]
    generator = random.Random(3)
    prompts = []
    for length in (140, 257, 300, 379, 385, 450, 251, 470, 129):
        shared = generator.choice([place for place in range(40, length) if place % BLOCK])
        own = generator.choices(range(128, 154), k=length - shared)
        prompts += [ids[:length], [*ids[:shared], *own]]
    case = scenario(
        "llama_target",
        "llama_eagle3",
        prompts=prompts,
        max_tokens=4,
        speculative={"method": "eagle3"},
        environment=runner,
        engine={"enable_prefix_caching": True, "max_num_seqs": 1},
        repeats=2,
    )
    drafted = engine.run(case)
    alone = engine.run(replace(case, draft=None, record_drafts=False))
    assert drafted.tokens == alone.tokens
    assert drafted.cached_tokens == alone.cached_tokens
    assert sum(alone.cached_tokens) > 5000


@pytest.mark.core
@pytest.mark.host("0.23")
def test_the_hash_of_a_block_tells_the_token_behind_it():
    init_none_hash(sha256)
    hasher = prefix_hits.hash_one_token_ahead(get_request_block_hasher, BLOCK, sha256)

    def hashes(tokens):
        request = Request("a", list(tokens), SamplingParams(max_tokens=9), None)
        request._block_hasher = hasher
        request.update_block_hashes()
        return request

    whole = range(1000, 1000 + 2 * BLOCK)
    known = hashes([*whole, 7]).block_hashes
    assert len(known) == 2
    assert hashes([*whole, 7, 8]).block_hashes == known
    # Of another token behind it only the last block is another one.
    others = hashes([*whole, 8]).block_hashes
    assert (others[0] == known[0], others[1] == known[1]) == (True, False)
    # A block has no hash before the token behind it is there.
    request = hashes(whole)
    assert request.block_hashes == known[:1]
    request.append_output_token_ids(7)
    assert request.block_hashes == known


@pytest.mark.core
@pytest.mark.host("0.23")
def test_where_others_read_hashes_or_a_token_does_not_tell_all_vllms_hashes_stay():
    def config(method="eagle3", predictor=None, events=False, **fields):
        draft = SimpleNamespace(hf_config=SimpleNamespace(n_predict=predictor))
        speculative = SimpleNamespace(
            draft_model_config=draft, use_eagle=lambda: method in ("eagle3", "mtp")
        )
        target = {"is_multimodal_model": False, "enable_prompt_embeds": False, "is_hybrid": False}
        return SimpleNamespace(
            speculative_config=None if method is None else speculative,
            kv_transfer_config=fields.pop("transfer", None),
            kv_events_config=SimpleNamespace(enable_kv_cache_events=events),
            model_config=SimpleNamespace(**{**target, **fields}),
        )

    assert prefix_hits.tells_all(config())
    assert prefix_hits.tells_all(config("mtp", 1))
    for other in (
        config(None),
        config("draft_model"),
        config("mtp", 3),
        config(events=True),
        config(transfer="a connector"),
        config(is_multimodal_model=True),
        config(enable_prompt_embeds=True),
        config(is_hybrid=True),
    ):
        assert not prefix_hits.tells_all(other)
