# SPDX-License-Identifier: Apache-2.0
"""eagle3 over targets whose classes give no hidden states: the states, and what heads propose.

``make matrix`` runs such heads over each of these families, with preemption and in chunks.
"""

import dataclasses
import itertools
from types import SimpleNamespace

import pytest
import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from torch import nn
from vllm.model_executor.models.interfaces import EagleModelMixin
from vllm.model_executor.models.utils import make_empty_intermediate_tensors_factory
from vllm.sequence import IntermediateTensors

from mkv_ascend.adapters.common.patches import auxiliary_states
from tests.emulated.drafting import probes
from tests.support import engine, programs, prompts, reference, speculation
from tests.support.pairs import assert_greedy_tokens_of_reference, checked_drafts, scenario
from tests.support.tiny_models import model_directory

DEFAULTS = {"engine": {"enforce_eager": False, "max_num_seqs": 3}, "traced": True}
VERIFIED_IN_GRAPHS = {"graphs": "FULL_DECODE_ONLY", "capture_sizes": (4, 16, 24)}
WIDTH = 8


@pytest.mark.host("0.23", cases=["gemma3 with vLLM's default settings"])
@pytest.mark.nightly("other cases of it stay", cases=["granite4"])
@pytest.mark.parametrize(
    ("target", "depths", "fields"),
    [
        # Its layers add everything up themselves, and nothing reads the residual that they give. A
        # graph keeps those of its states that the replayed proposal joins.
        ("granite4", [0, 1, 2], VERIFIED_IN_GRAPHS),
        # Its layers leave the last addition to the next one. Traced by Dynamo, mixed batches in
        # pieces, verify steps and proposals in full graphs.
        ("gemma3", [1, 2, 3], DEFAULTS),
    ],
    ids=["granite4", "gemma3 with vLLM's default settings"],
)
def test_states_are_hugging_faces_and_proposals_the_heads(target, depths, fields):
    directory, head = model_directory(target), model_directory(f"{target}_eagle3")
    texts = [*prompts.text_prompts()[:3], *prompts.deck_prompts(3)]
    case = scenario(
        target,
        head.name.rpartition("-")[0],
        prompts=[reference.token_ids(directory, text) for text in texts],
        max_tokens=32,
        speculative={"method": "eagle3"},
        **fields,
    )
    answer = programs.answer_of(probes.auxiliary_states, dataclasses.asdict(case))
    true = speculation.hidden_states_of(directory, tuple(case.prompts[0]))
    close = {"rtol": 1e-4, "atol": 1e-4} if engine.compared_dtype() == "float32" else {"rtol": 0.05}
    for states, depth in zip(answer["states"], depths, strict=True):
        torch.testing.assert_close(torch.tensor(states), true[depth][0], **close)

    result = SimpleNamespace(**answer["result"])
    assert_greedy_tokens_of_reference(case, result)
    proposals = [reference.DraftProposal(**proposal) for proposal in result.proposals]
    assert (
        checked_drafts(speculation.DraftHead(head, directory).rows, proposals)
        == case.num_speculative_tokens * len(proposals)
        > 100
    )
    assert 0.3 * result.num_drafts < result.accepted_per_position[0] < result.num_drafts
    assert result.draft_replays > 5


class Adding(nn.Module):
    """A layer that adds everything up; nothing reads the residual that it gives."""

    def forward(self, hidden_states, residual):
        residual = hidden_states
        hidden_states = residual + 1
        return hidden_states, residual * 100


class Leaving(nn.Module):
    """A layer that leaves its last addition to the next one, and adds in place."""

    def forward(self, hidden_states, residual):
        if residual is None:
            residual = hidden_states
        else:
            residual += hidden_states
        return torch.ones_like(hidden_states), residual


class Plain(nn.Module):
    def forward(self, hidden_states, residual):
        return hidden_states + 1


class FailingOnce(Adding):
    """Fails in the first pass, behind layers whose states are gathered already."""

    failed = False

    def forward(self, hidden_states, residual):
        if hidden_states[0, 0] == 2 and not FailingOnce.failed:
            FailingOnce.failed = True
            raise RuntimeError("out of memory")
        # Not by the class above: handing on the residual would count as reading it.
        return hidden_states + 1, hidden_states * 100


class Streams(Adding):
    """Several states per token, as DeepSeek-V4 has."""

    def forward(self, hidden_states, residual):
        return hidden_states[:, None].expand(-1, 4, -1), None


class Decoder(nn.Module):
    def __init__(self, kind, count):
        super().__init__()
        self.start_layer, self.end_layer = 0, count
        self.blocks = nn.ModuleList([kind() for _ in range(count)])

    def forward(self, hidden_states):
        residual = None
        for layer in self.blocks:
            output = layer(hidden_states=hidden_states, residual=residual)
            hidden_states, residual = output if isinstance(output, tuple) else (output, None)
        return hidden_states


class StageDecoder(Decoder):
    """The layers of one pipeline stage, as vLLM's classes run them."""

    def __init__(self, kind, first, end, count):
        super().__init__(kind, count)
        self.start_layer, self.end_layer = first, end
        for index in {*range(count)} - {*range(first, end)}:
            self.blocks[index] = nn.Identity()

    def forward(self, hidden_states, intermediate_tensors=None):
        residual = None
        if intermediate_tensors is not None:
            hidden_states = intermediate_tensors["hidden_states"]
            residual = intermediate_tensors["residual"]
        for layer in self.blocks[self.start_layer : self.end_layer]:
            hidden_states, residual = layer(hidden_states=hidden_states, residual=residual)
        if self.end_layer < len(self.blocks):
            return IntermediateTensors({"hidden_states": hidden_states, "residual": residual})
        return hidden_states + residual


class Stage(nn.Module):
    def __init__(self, first, end, count):
        super().__init__()
        self.decoder = StageDecoder(Leaving, first, end, count)
        self.make_empty_intermediate_tensors = make_empty_intermediate_tensors_factory(
            ["hidden_states", "residual"], WIDTH
        )

    def forward(self, hidden_states, positions, intermediate_tensors=None):
        return self.decoder(hidden_states, intermediate_tensors)


class Target(nn.Module):
    def __init__(self, kind, count=3):
        super().__init__()
        self.decoder = Decoder(kind, count)

    def forward(self, hidden_states):
        return self.decoder(hidden_states) * 2


def handing_out(model, depths, count=3, stages=1):
    """``model`` after it was asked for the states at ``depths``."""
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(pipeline_parallel_size=stages),
        speculative_config=SimpleNamespace(method="eagle3"),
        model_config=SimpleNamespace(
            get_total_num_hidden_layers=lambda: count, get_hidden_size=lambda: WIDTH
        ),
    )
    auxiliary_states.hand_out(model, config)
    model.set_aux_hidden_state_layers(depths)
    return model


@pytest.mark.core
@pytest.mark.host("0.23")
@pytest.mark.parametrize("kind", [Adding, Leaving, Plain])
def test_each_layer_adds_one(kind):
    """Depth ``i`` is ``i`` more than the embedding, whichever way the layers add."""
    model = handing_out(Target(kind), (3, 0, 2))
    assert isinstance(model, Target)
    for tokens in (5, 2):
        output, states = model(torch.full((tokens, WIDTH), 7.0))
        assert output.shape == (tokens, WIDTH), "the target's own output, not only states"
        assert [state.unique().tolist() for state in states] == [[7.0], [9.0], [10.0]]
        assert {state.shape for state in states} == {(tokens, WIDTH)}


@pytest.mark.host("0.23")
@pytest.mark.parametrize("borders", [(0, 2, 4), (0, 1, 3, 4), (0, 2, 2, 4), (0, 4, 4)])
@pytest.mark.parametrize("depths", [(0, 1, 2, 3, 4), (4, 2), (0,), (3,), (2, 2)])
def test_states_travel_with_what_a_stage_sends(borders, depths):
    """Depths before, at and behind the borders of stages; a stage may have no layer."""
    sent = None
    for first, end in itertools.pairwise(borders):
        stage = handing_out(Stage(first, end, 4), depths, count=4, stages=len(borders) - 1)
        room = stage.make_empty_intermediate_tensors(3, torch.float32, torch.device("cpu"))
        if sent is not None:
            assert {name: state.shape for name, state in room.items()} == {
                name: state.shape for name, state in sent.items()
            }
        sent = stage(
            torch.full((3, WIDTH), 7.0), positions=torch.arange(3), intermediate_tensors=sent
        )
        if end == 4:
            break
    output, states = sent
    assert output.unique().tolist() == [11.0]
    assert [state.unique().tolist() for state in states] == [[7.0 + d] for d in sorted({*depths})]


@pytest.mark.host("0.23")
def test_states_of_a_share_of_the_tokens_are_refused():
    stage = handing_out(Stage(0, 2, 4), (1,), count=4, stages=2)
    with pytest.raises(NotImplementedError, match=r"6 tokens at 1 depths .* gave \[3\]"):
        stage(torch.zeros(3, WIDTH), positions=torch.arange(6))


@pytest.mark.host("0.23")
def test_other_depths_replace_those_asked_for_before():
    model = handing_out(Target(Adding), (1, 2))
    model.set_aux_hidden_state_layers((3,))
    _, states = model(torch.zeros(2, WIDTH))
    assert [state.unique().tolist() for state in states] == [[3.0]]
    assert model.get_eagle3_default_aux_hidden_state_layers() == (2, 1, 0)


@pytest.mark.host("0.23")
def test_a_pass_that_fails_leaves_no_states_behind():
    model = handing_out(Target(FailingOnce), (1, 2))
    with pytest.raises(RuntimeError, match="out of memory"):
        model(torch.zeros(2, WIDTH))
    _, states = model(torch.zeros(2, WIDTH))
    assert [state.unique().tolist() for state in states] == [[1.0], [2.0]]


@pytest.mark.host("0.23")
def test_a_class_that_hands_out_states_stays_as_it_is():
    class Own(Target):
        supports_eagle3, has_own_lm_head, has_own_embed_tokens = True, False, False

        def get_eagle3_default_aux_hidden_state_layers(self):
            return ()

        def set_aux_hidden_state_layers(self, layers):
            self.asked = layers

    model = handing_out(Own(Adding), (1,))
    assert type(model) is Own
    assert model.asked == (1,)


@pytest.mark.host("0.23")
def test_a_class_that_only_says_so_is_given_hooks():
    """MiMo derives from Qwen2, and its decoder has a forward of its own."""

    class Forgetful(Decoder, EagleModelMixin):
        pass

    class Derived(Target):
        supports_eagle3, has_own_lm_head, has_own_embed_tokens = True, False, False

        def __init__(self, kind):
            nn.Module.__init__(self)
            self.decoder = Forgetful(kind, 3)

        def get_eagle3_default_aux_hidden_state_layers(self):
            return ()

        def set_aux_hidden_state_layers(self, layers):
            raise AssertionError("its decoder would not heed them")

    _, states = handing_out(Derived(Adding), (1, 2))(torch.zeros(2, WIDTH))
    assert [state.unique().tolist() for state in states] == [[1.0], [2.0]]


@pytest.mark.host("0.23")
def test_what_cannot_be_handed_out_is_refused():
    with pytest.raises(NotImplementedError, match=r"Target .* 0 of its modules hold 5 layers"):
        handing_out(Target(Adding), (1,), count=5)
    with pytest.raises(ValueError, match=r"depths \[1, 4\] .* depths from 0 to 3"):
        handing_out(Target(Adding), (1, 4))
    with pytest.raises(NotImplementedError, match=r"hand on \(2, 4, 8\) where .* 8 numbers"):
        handing_out(Target(Streams, 1), (1,), count=1)(torch.zeros(2, WIDTH))
