# SPDX-License-Identifier: Apache-2.0
"""Requests of different sorts in one batch with a draft over two KV groups.

Adapters (LoRA) on the target, grammars, aborted requests. All run in one engine, so each sort must
also leave the others alone. The judge is Hugging Face: the target with the adapter merged
into its weights, and a plain loop that lets only tokens of the grammar be chosen.
"""

import pytest

from tests.emulated.drafting import probes
from tests.support import engine, hosts, programs, prompts, reference
from tests.support.adapters import RANK, make_adapter, widened
from tests.support.pairs import TIES, assert_greedy, scenario
from tests.support.stock import RUNNER_V2, RUNNERS
from tests.support.tiny_models import model_directory
from tests.support.tiny_models.tokenizer import EOS_TOKEN_ID

TARGET, DRAFT, STATES = "llama_target", "gemma3_draft", "qwen3_next"
K, NEW_TOKENS = 3, 24
ADAPTED = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj", "lm_head")

NOT_TRACED = {"TORCHDYNAMO_DISABLE": "1", "VLLM_USE_AOT_COMPILE": "0"}
EAGERLY = [pytest.param((runner.values[0], None), id=runner.id) for runner in RUNNERS]
IN_GRAPHS = pytest.param(
    (RUNNER_V2 | NOT_TRACED, "FULL_DECODE_ONLY"),
    id="v2-graphs",
    marks=hosts.only_on("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone"),
)

LETTERS = {"regex": f"[a-z ]{{{NEW_TOKENS}}}"}
WORDS = ["settle", "set", "sunday"]


def letters_allowed(done):
    """Tokens that ``LETTERS`` allows after the tokens ``done``."""
    return [*range(ord("a"), ord("z") + 1), ord(" ")] if len(done) < NEW_TOKENS else []


def words_allowed(done):
    """Tokens that a choice of ``WORDS`` allows: of words that begin so, or the end."""
    fitting = [word for word in WORDS if list(word.encode())[: len(done)] == done]
    over = [EOS_TOKEN_ID for word in fitting if len(word) == len(done)]
    return [*(ord(word[len(done)]) for word in fitting if len(word) > len(done)), *over]


def constrained(target, prompt, allowed):
    """Greedy tokens: each is the best one that ``allowed(tokens so far)`` lets through."""
    done = []
    while choices := allowed(done):
        row = reference.logits_of(target, [*prompt, *done])[-1]
        done.append(max(choices, key=lambda token, row=row: float(row[token])))
        if done[-1] == EOS_TOKEN_ID:
            break
    return done


def requests():
    target = model_directory(TARGET)
    texts = [*prompts.text_prompts()[4:9], *prompts.deck_prompts(1)]
    ids = [reference.token_ids(target, text) for text in texts]
    plain = {"max_tokens": NEW_TOKENS}
    return {
        "plain": [{"prompt": prompt, **plain} for prompt in ids[:2]],
        "adapted": [{"prompt": prompt, "adapted": 1, **plain} for prompt in ids[:3]],
        "aborted": [{"prompt": ids[4], "abort_after": 7, **plain}],
        # Drafts that a grammar cuts short keep a step out of graphs, so these come last.
        "letters": [{"prompt": prompt, "grammar": LETTERS, **plain} for prompt in ids[:3]],
        "words": [{"prompt": prompt, "grammar": {"choice": WORDS}, **plain} for prompt in ids[:2]],
    }


@pytest.fixture(scope="module", params=[*EAGERLY, IN_GRAPHS])
def session(request, tmp_path_factory):
    """What one engine of each model runner made of all requests; by sort."""
    variables, graphs = request.param
    folder = tmp_path_factory.mktemp("models")
    target, draft = widened(TARGET, folder), widened(DRAFT, folder)
    adapter, merged = make_adapter(target, folder, ADAPTED)
    sorts = requests()
    case = engine.Scenario(
        str(target),
        str(draft),
        record_drafts=True,
        num_speculative_tokens=K,
        graphs=graphs,
        capture_sizes=tuple(requests * (K + 1) for requests in (1, 2, 4, 6)),
        engine={
            "enable_lora": True,
            "max_lora_rank": RANK,
            "skip_tokenizer_init": False,
            "max_num_seqs": 6,
        },
    )
    asked = {
        "engine": case.engine_arguments(),
        "adapters": [str(adapter)],
        "requests": [each for several in sorts.values() for each in several],
    }
    answer = programs.answer_of(probes.requests, asked, variables)
    tokens = iter(answer["tokens"])
    answer["by_sort"] = {
        sort: [(each["prompt"], next(tokens)) for each in several]
        for sort, several in sorts.items()
    }
    return {**answer, "merged": merged, "graphs": graphs}


def judge(model, pairs):
    ids, tokens = zip(*pairs, strict=True)
    assert_greedy(model, list(ids), list(tokens), NEW_TOKENS)


@pytest.mark.nightly("other cases of it stay", cases=["v2"])
def test_the_adapter_is_the_targets_alone(session):
    base, plain, adapted = (
        model_directory(TARGET),
        session["by_sort"]["plain"],
        session["by_sort"]["adapted"],
    )
    judge(base, plain)
    judge(session["merged"], adapted)
    assert [tokens for _, tokens in adapted[: len(plain)]] != [tokens for _, tokens in plain]


def accepted_after(session, prompts_of_sort, tokens_of_sort):
    """(accepted, drafted) of the proposals made for requests whose tokens these are."""
    accepted = drafted = 0
    for prompt, tokens in zip(prompts_of_sort, tokens_of_sort, strict=True):
        whole = [*prompt, *tokens]
        for proposal in session["proposals"]:
            start = len(proposal["context"])
            if start <= len(prompt) or whole[:start] != proposal["context"]:
                continue
            for position, token in enumerate(proposal["tokens"], start):
                drafted += 1
                if whole[position : position + 1] != [token]:
                    break
                accepted += 1
    return accepted, drafted


@pytest.mark.nightly("other cases of it stay", cases=["v2-adapted", "v2-letters"])
@pytest.mark.parametrize("sort", ["adapted", "letters"])
def test_drafts_are_accepted(session, sort):
    """A third of what was looked at, at least: grammar and adapter are the target's alone."""
    accepted, drafted = accepted_after(session, *zip(*session["by_sort"][sort], strict=True))
    print(f"{sort}: accepted {accepted} of {drafted} draft tokens that were looked at")
    assert accepted > 0.3 * drafted > 10


@pytest.mark.nightly("other cases of it stay", cases=["v2"])
def test_graphs_of_target_and_draft_are_replayed_where_asked_for(session):
    in_graphs = session["graphs"] is not None
    for who in ("target", "draft"):
        assert (session[f"{who}_replays"] > 3) == in_graphs, session[f"{who}_replays"]


@pytest.mark.nightly("other cases of it stay", cases=["v2"])
def test_grammars_hold_and_tokens_are_those_without_a_draft(session):
    target = model_directory(TARGET)
    for sort, allowed in (("letters", letters_allowed), ("words", words_allowed)):
        for prompt, tokens in session["by_sort"][sort]:
            assert tokens == constrained(target, prompt, allowed)


@pytest.mark.nightly("other cases of it stay", cases=["v2"])
def test_an_aborted_request_leaves_nothing_behind(session):
    [(prompt, tokens)] = session["by_sort"]["aborted"]
    assert 7 <= len(tokens) < 7 + K + 1
    assert_greedy(model_directory(TARGET), [prompt], [tokens], len(tokens))
    assert session["blocks_kept"] == 0


@pytest.mark.nightly("other cases of it stay", cases=["v2"])
def test_every_draft_token_is_the_drafts_own(session):
    proposals = [reference.DraftProposal(**proposal) for proposal in session["proposals"]]
    near_tie, _ = TIES[engine.compared_dtype()]
    report = reference.check_drafts(model_directory(DRAFT), proposals, near_tie)
    assert report.checked == K * len(proposals) > 100
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
@pytest.mark.parametrize("runner", RUNNERS)
def test_grammars_beside_recurrent_states(runner):
    """A grammar cuts drafts short, so rows with fewer tokens are padded beside others."""
    target = model_directory(STATES)
    ids = [reference.token_ids(target, text) for text in prompts.text_prompts()[4:8]]
    plain = {"max_tokens": NEW_TOKENS}
    sorts = {
        "plain": [{"prompt": prompt, **plain} for prompt in ids],
        "letters": [{"prompt": prompt, "grammar": LETTERS, **plain} for prompt in ids],
        "words": [{"prompt": prompt, "grammar": {"choice": WORDS}, **plain} for prompt in ids],
    }
    case = scenario(
        STATES,
        DRAFT,
        num_speculative_tokens=K,
        engine={"skip_tokenizer_init": False, "max_num_seqs": 6},
    )
    # One of each sort after another, so that they share batches.
    together = [each for several in zip(*sorts.values(), strict=True) for each in several]
    asked = {"engine": case.engine_arguments(), "adapters": [], "requests": together}
    answer = programs.answer_of(probes.requests, asked, runner)
    count = len(sorts)
    plain_tokens, letters, words = (answer["tokens"][place::count] for place in range(count))
    judge(target, list(zip(ids, plain_tokens, strict=True)))
    for tokens, allowed in ((letters, letters_allowed), (words, words_allowed)):
        assert tokens == [constrained(target, prompt, allowed) for prompt in ids]
    assert sum(answer["accepted_per_position"]) > 0.2 * K * answer["num_drafts"] > 10
