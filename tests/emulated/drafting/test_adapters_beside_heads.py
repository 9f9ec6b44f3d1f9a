# SPDX-License-Identifier: Apache-2.0
"""Two adapters (LoRA) of a target, and rows without one, beside a head on its hidden states.

A head shares the target's embedding and output layer, which adapters adapt. It reads the states of
the adapted target, but its own weights are those without any adapter. The judge is Hugging Face:
the target with the adapter merged into its weights, and the head on that target's hidden states.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
import torch

from tests.emulated.drafting import probes
from tests.support import engine, hosts, programs, prompts, reference, speculation
from tests.support.adapters import RANK, make_adapter, widened
from tests.support.loop_judgement import REFERENCE_OF, in_order
from tests.support.stages import STAGES
from tests.support.stock import RUNNER_V2, RUNNERS
from tests.support.tiny_models import block_head, model_directory

K, NEW_TOKENS, PROMPTS = 3, 16, 3
SEEDS = (5, 6)
EVERYWHERE = ("embed_tokens", "self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj", "lm_head")
ATTENTION = ("self_attn.q_proj", "self_attn.o_proj")

NOT_TRACED = {"TORCHDYNAMO_DISABLE": "1", "VLLM_USE_AOT_COMPILE": "0"}
EAGERLY = [pytest.param((runner.values[0], None), id=runner.id) for runner in RUNNERS]
IN_GRAPHS = [
    pytest.param((runner.values[0] | NOT_TRACED, "FULL_DECODE_ONLY"), id=f"{runner.id}-graphs")
    for runner in RUNNERS
]
# Target, head, method, adapted layers. vLLM adapts no embedding of Qwen3-Next.
CASES = [
    pytest.param("llama_target", "llama_eagle", "eagle", EVERYWHERE, id="eagle"),
    pytest.param("llama_target", "llama_eagle3", "eagle3", EVERYWHERE, id="eagle3"),
    pytest.param("gpt_oss", "gpt_oss_dflash", "dflash", ATTENTION, id="dflash"),
    pytest.param(
        "gpt_oss",
        "gpt_oss_dspark",
        "dspark",
        ATTENTION,
        id="dspark",
        marks=hosts.only_on("vllm_ascend_0_30", "vLLM 0.23.0 knows no method dspark"),
    ),
    pytest.param(
        "qwen3_next_mtp",
        "qwen3_next_mtp",
        "mtp",
        ATTENTION,
        id="mtp",
        marks=hosts.only_on(
            "vllm_ascend_0_30", "vllm-ascend 0.23.0 takes no adapters beside shared experts"
        ),
    ),
]


@dataclass(frozen=True)
class HeadBesideAdapter:
    """A head with the embedding and output layer of ``target``, on states of ``merged``."""

    checkpoint: Path
    target: Path
    merged: Path

    def rows(self, context, drafted):
        with torch.inference_mode():
            states = speculation.hidden_states_of(self.merged, tuple(context[:-1]))
            head = speculation.load_head(self.checkpoint, self.target)
            return speculation.rows_of_head(head, head.known(states), context, drafted)


class BlockBesideAdapter(HeadBesideAdapter):
    """The same of a head that drafts all tokens at once, from masks."""

    def rows(self, context, drafted):
        with torch.inference_mode():
            head = speculation.load_head(self.checkpoint, self.target)
            known = head.known(speculation.hidden_states_of(self.merged, tuple(context[:-1])))
            rows = block_head.propose(head, known, context[-1], K)[0, : len(drafted) + 1]
            before = torch.tensor([context[-1], *drafted])[: rows.shape[0]]
            return head.after(rows, before).float()


def decided(prompt, models, checkpoint, target, method):
    """Draft-and-verify of the prompt for each of ``models``; None where a near tie decides."""
    kind = BlockBesideAdapter if method in ("dflash", "dspark") else HeadBesideAdapter
    outputs = []
    for model in models:
        drafter = kind(checkpoint, target, model)
        answer = reference.cached_answer(
            [target, model, checkpoint],
            {"head beside adapters": prompt, "k": K, "tokens": NEW_TOKENS},
            lambda model=model, drafter=drafter: asdict(
                speculation.speculate(model, drafter, prompt, K, NEW_TOKENS)
            ),
        )
        proposals = [reference.DraftProposal(**proposal) for proposal in answer.pop("proposals")]
        outputs.append(speculation.SpeculativeOutput(proposals=proposals, **answer))
        if not outputs[-1].decided:
            return None
    return outputs


def expected_of(merged, head, target, method):
    """Prompts, and for each what every target does with it."""
    found = []
    texts = [*prompts.deck_prompts(2), *prompts.text_prompts()[4:12]]
    for text in texts:
        prompt = reference.token_ids(target, text)
        outputs = decided(prompt, merged, model_directory(head), target, method)
        if outputs is not None:
            found.append((prompt, outputs))
        if len(found) == PROMPTS:
            return found
    raise AssertionError("too many near ties")


@pytest.mark.host("0.23", cases=["dspark-v1", "dspark-v1-*", "eagle-v1", "mtp-v1", "mtp-v1-*"])
@pytest.mark.host("0.30", cases=["eagle3-v1-*"])
@pytest.mark.nightly(
    "other cases of it stay",
    cases=[
        "dflash-*",
        "dspark-v2",
        "dspark-v2-*",
        "eagle-v1-*",
        "eagle-v2",
        "eagle3-v1",
        "eagle3-v2",
        "eagle3-v2-*",
        "mtp-v2-*",
    ],
)
@pytest.mark.parametrize("runner", [*EAGERLY, *IN_GRAPHS])
@pytest.mark.parametrize(("target", "head", "method", "adapted"), CASES)
def test_tokens_and_drafts(target, head, method, adapted, runner, tmp_path):
    variables, graphs = runner
    answer = judged_answer((target, head, method, adapted), variables, graphs, tmp_path)
    assert (answer["target_replays"] > 3) == (graphs is not None)


@pytest.mark.host("0.23", cases=["*-eager", "eagle-*"])
@hosts.only_on("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")
@pytest.mark.parametrize("graphs", [None, "FULL_DECODE_ONLY"], ids=["eager", "graphs"])
@pytest.mark.parametrize(("target", "head", "method", "adapted"), CASES[:2])
def test_over_pipeline_stages(target, head, method, adapted, graphs, tmp_path):
    """On model runner V2. Each stage adapts its own layers, the first one the embedding."""
    case, variables = (target, head, method, adapted), RUNNER_V2 | NOT_TRACED
    judged_answer(case, variables, graphs, tmp_path, **STAGES)


def judged_answer(case, variables, graphs, tmp_path, **options):
    """What the probe answers, whose tokens and drafts are the reference's.

    ``case``: of ``CASES``. ``options``: further arguments of the engine.
    """
    target, head, method, adapted = case
    plain = model_directory(REFERENCE_OF.get(target, target))
    base = model = widened(target, tmp_path)
    draft = model if target == head else widened(head, tmp_path)
    made = [make_adapter(base, tmp_path / f"seed{seed}", adapted, seed) for seed in SEEDS]
    found = expected_of([base, *(merged for _, merged in made)], head, plain, method)
    case = engine.Scenario(
        str(model),
        str(draft),
        record_drafts=True,
        num_speculative_tokens=K,
        speculative={"method": method},
        graphs=graphs,
        capture_sizes=tuple(requests * (K + 1) for requests in (1, 2, 4, 6)),
        engine={
            "enable_lora": True,
            "max_loras": 2,
            "max_lora_rank": RANK,
            "max_num_seqs": 6,
            **options,
        },
        environment=variables,
    )
    asked = {
        "engine": case.engine_arguments(),
        "adapters": [str(adapter) for adapter, _ in made],
        "requests": [
            {"prompt": prompt, "adapted": number, "max_tokens": NEW_TOKENS}
            for prompt, outputs in found
            for number in range(len(outputs))
        ],
    }
    answer = programs.answer_of(probes.requests, asked, variables)
    outputs = [output for _, several in found for output in several]
    assert answer["tokens"] == [output.tokens for output in outputs]
    assert len({str(answer["tokens"][number :: 1 + len(SEEDS)]) for number in range(3)}) == 3
    proposals = [reference.DraftProposal(**proposal) for proposal in answer["proposals"]]
    assert in_order(proposals) == in_order(
        proposal for output in outputs for proposal in output.proposals
    )
    accepted = [sum(output.accepted_per_position[i] for output in outputs) for i in range(K)]
    assert answer["accepted_per_position"] == accepted
    assert 0.1 * len(proposals) < accepted[0]
    assert accepted[-1] < len(proposals)
    assert (answer["draft_replays"] > 3) == (graphs is not None)
    return answer
