# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4: compressed keys, windows, their states and the indexer's keys; its MTP layer.

It computes in bfloat16 only, so the comparison of tokens allows near ties, which two orders of
summation leave in 16 bits. Otherwise it is as sharp as elsewhere: one wrong key changes many
tokens.
The matrix runs it with all drafts (``benchmarks/matrix/rounded.py`` says how that is judged).
"""

import random

import pytest

from benchmarks.matrix.cells import find_cells
from benchmarks.matrix.rounded import RoundedJudge
from tests.support import deepseek_v4, engine, hosts, prompts, reference
from tests.support.pairs import TIES, backends
from tests.support.stock import RUNNER_V2, STOCK, each_runner
from tests.support.tiny_models import model_directory

MAX_TOKENS = 16
# Around a group of 4, a window of 128 and groups of 128.
LENGTHS = (6, 127, 128, 141, 301)
ENGINE = {"dtype": "bfloat16", "max_num_batched_tokens": 128, "max_num_seqs": 4}
if not hosts.ADAPTER.RULES.compressed_in_one_process:
    ENGINE["distributed_executor_backend"] = "mp"

NEAR_TIE, SHARE = TIES["bfloat16"]
# Its layers name backends that the catalog does not have on other hosts: no row shows them there.
NAMED = {"compressed_mla"} if hosts.PLANS_DEEPSEEK_V4 else set()


def random_prompts(lengths=LENGTHS):
    generator = random.Random(0)
    return [[generator.randrange(256) for _ in range(length)] for length in lengths]


def text_prompts(lengths=LENGTHS):
    """Prompts of text, so that drafts are accepted."""
    texts = [prompts.held_out_text(place, length - 1) for place, length in enumerate(lengths)]
    return [reference.token_ids(model_directory("deepseek_v4_fitted"), text) for text in texts]


def scenario(**fields):
    values = {
        "model": str(model_directory("deepseek_v4_fitted")),
        "prompts": random_prompts(),
        "max_tokens": MAX_TOKENS,
        "engine": ENGINE,
        **fields,
    }
    return engine.Scenario(**values)


def deviations(case, result, judge):
    """Every token against the reference's choice after the tokens before it."""

    def rows(context, tokens):
        return judge.logits([*context, *tokens])[len(context) - 1 :]

    pairs = zip(case.prompts * case.repeats, result.tokens, strict=True)
    proposals = [reference.DraftProposal(prompt, tokens) for prompt, tokens in pairs]
    report = reference.judge(rows, proposals, NEAR_TIE)
    assert report.checked == MAX_TOKENS * len(case.prompts) * case.repeats
    return report


def assert_tokens_are(case, result, judge):
    report = deviations(case, result, judge)
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
    # A prompt that is run again meets the same ones again: each place counts once.
    places = {(tie.proposal % len(case.prompts), tie.position) for tie in report.near_ties}
    assert len(places) <= SHARE * report.checked, places


def model(**changes):
    whole = deepseek_v4.load(model_directory("deepseek_v4_fitted"))
    return deepseek_v4.Reference(whole.config, whole.weights, **changes) if changes else whole


def assert_accepted_as_the_reference_does(judge, case, result):
    """Proposals were due where they were made, and as many of their tokens were accepted."""
    count = judge.count(case.prompts, result)
    assert not count.strays
    assert result.num_drafts == count.verified
    bounds = zip(count.least, result.accepted_per_position, count.most, strict=True)
    assert all(least <= accepted <= most for least, accepted, most in bounds), count
    # Neither a hopeless draft nor one that is never rejected would show much.
    assert 0.15 * count.verified < result.accepted_per_position[0]
    assert result.accepted_per_position[-1] < count.verified


def assert_drafts_are_the_drafts_own(case, result):
    report = reference.check_drafts(case.draft, result.proposals, NEAR_TIE)
    assert report.checked == sum(len(proposal.tokens) for proposal in result.proposals)
    assert len(result.proposals) > 25
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))


GRAPHS = {"graphs": "FULL_DECODE_ONLY", "capture_sizes": (4, 8, 16)}


def run_mtp_layer(runner, **fields):
    """Its MTP layer drafts; every draft token is judged, those of replayed proposals too."""
    judge = RoundedJudge(*find_cells(["deepseek-v4/mtp"]))
    case = scenario(
        draft=str(model_directory("deepseek_v4_fitted")),
        speculative={"method": "mtp"},
        prompts=judge.requests()[: len(LENGTHS)],
        record_drafts=True,
        environment=runner,
        **fields,
    )
    result = engine.run(case)
    assert_tokens_are(case, result, model())
    layer = deepseek_v4.DraftLayer(model_directory("deepseek_v4_fitted"))
    report = reference.judge(layer.rows, result.proposals, NEAR_TIE)
    assert report.checked == sum(len(proposal.tokens) for proposal in result.proposals)
    assert len(result.proposals) > 25
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
    assert_accepted_as_the_reference_does(judge, case, result)
    # Bounds of the lengths are all that the host needs, and it has them.
    assert result.draft_waits == 0
    return result


def run_dense_draft(runner, **fields):
    """A draft without windows, though all of the target's layers have one.

    Prompts of text, so that drafts are accepted: those with the fewest near ties.
    """
    judge = RoundedJudge(*find_cells(["deepseek-v4/dense"]))
    case = scenario(
        draft=str(model_directory("llama_draft")),
        record_drafts=True,
        prompts=judge.requests()[: len(LENGTHS)],
        environment=runner,
        **fields,
    )
    result = engine.run(case)
    assert {row["kind"] for row in result.layers if row["role"] == "draft"} == {"full_attention"}
    assert_tokens_are(case, result, model())
    assert_drafts_are_the_drafts_own(case, result)
    assert_accepted_as_the_reference_does(judge, case, result)
    return result


@hosts.only_on("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")
def test_stock_model_runner_v2_alone():
    """vllm-ascend as it is released: what drafts on that runner build on."""
    case = scenario(environment={**STOCK, **RUNNER_V2})
    result = engine.run(case)
    assert result.platform.startswith("vllm_ascend."), result.platform
    assert "npu model runner v2" in result.log
    assert_tokens_are(case, result, model())


@pytest.mark.nightly("near to tests that stay")
@each_runner
def test_tokens_are_the_references_and_drafts_its_mtp_layers(runner):
    """In chunks, in mixed batches, and once more.

    Blocks hold states in float32 and keys in bfloat16 in turn: a key that is read before it was
    written is no number.
    """
    case = scenario(
        draft=str(model_directory("deepseek_v4_fitted")),
        speculative={"method": "mtp"},
        prompts=text_prompts(),
        record_drafts=True,
        repeats=2,
        environment=runner,
    )
    result = engine.run(case)
    assert backends(result) == {role: NAMED for role in ("target", "draft") if NAMED}
    assert_tokens_are(case, result, model())
    layer = deepseek_v4.DraftLayer(model_directory("deepseek_v4_fitted"))
    report = reference.judge(layer.rows, result.proposals[::8], NEAR_TIE)
    assert report.checked > 20
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
    assert 0.2 < sum(result.accepted_per_position) / result.num_drafts < 2.5


@pytest.mark.nightly("near to tests of 0.30.0rc2, which stay")
def test_few_keys_are_chosen():
    """16 of up to 79 compressed keys. The operator documents 512, so this run is not strict."""
    changes = {"index_topk": 16}
    case = scenario(
        engine={**ENGINE, "hf_overrides": changes},
        environment={"EMULATED_NPU_STRICT": "0"},
    )
    result = engine.run(case)
    assert backends(result) == ({"target": NAMED} if NAMED else {})
    assert_tokens_are(case, result, model(**changes))
    # The judge notices: with all keys other tokens are right.
    assert len(deviations(case, result, model()).wrong) > 5


@pytest.mark.nightly("near to tests of 0.30.0rc2, which stay")
@each_runner
def test_dense_draft(runner):
    run_dense_draft(runner)


@pytest.mark.nightly("other cases of it stay", cases=["v1"])
@each_runner
def test_dense_draft_in_graphs(runner):
    result = run_dense_draft(runner, **GRAPHS)
    assert result.draft_replays > 5


@pytest.mark.nightly("other cases of it stay", cases=["v1"])
@each_runner
def test_mtp_layer_in_graphs(runner):
    """Requests end at different steps: graphs for 2 and 4 requests are padded."""
    result = run_mtp_layer(runner, **GRAPHS)
    assert result.draft_replays > 5


@pytest.mark.nightly("on some processors one of 135 draft tokens is a tie of bfloat16")
@each_runner
def test_mtp_layer_in_default_graphs(runner):
    """Dynamo traces both models, and each graph's states must reach the layer that drafts."""
    result = run_mtp_layer(
        runner,
        graphs="FULL_AND_PIECEWISE",
        capture_sizes=(4, 8),
        traced=True,
        engine={**ENGINE, "max_num_seqs": 2},
    )
    assert "'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE" in result.log
    assert result.draft_replays > 10


@pytest.mark.host("0.23", cases=["None"])
@hosts.only_on("vllm_ascend_0_30", "0.23.0 has no K by batch size")
@pytest.mark.parametrize("graphs", [None, "FULL_DECODE_ONLY"])
def test_k_by_batch_size_on_model_runner_v2(graphs):
    """Four tokens are a request of K = 3 or two of K = 1."""
    result = run_dense_draft(
        RUNNER_V2,
        speculative={"num_speculative_tokens_per_batch_size": [[1, 2, 3], [3, 4, 1]]},
        graphs=graphs,
        capture_sizes=(2, 4, 8),
    )
    assert {len(proposal.tokens) for proposal in result.proposals} == {1, 3}
    assert (result.draft_replays > 5) == (graphs is not None)
