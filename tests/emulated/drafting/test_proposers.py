# SPDX-License-Identifier: Apache-2.0
"""Our members of proposers, on stand-ins that only record what they were given. No engine."""

from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from transformers import PretrainedConfig
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.kv_cache_interface import MambaSpec
from vllm.v1.utils import CpuGpuBuffer
from vllm_ascend.attention.attention_v1 import AscendAttentionState

from mkv_ascend.adapters.common.attention.derived import derive
from mkv_ascend.drafting.draft import DraftBuffers, TargetOutput
from mkv_ascend.drafting.plan import DraftPlan, Sizes
from mkv_ascend.drafting.strategy import Planner
from tests.support import hosts
from tests.support.draft_facts import facts

pytestmark = pytest.mark.core

CommonMetadata = hosts.module("backends.port").CommonMetadata
_strategies = hosts.module("drafting.strategies")
Attention = _strategies.Attention
MaskTokens = _strategies.MaskTokens
Recurrent = _strategies.Recurrent
TargetKeys = _strategies.TargetKeys
_mask_tokens = hosts.module("drafting.mask_tokens")
_proposers = hosts.module("drafting.proposers")
CONTEXT_PARALLEL_PROPOSERS = _proposers.CONTEXT_PARALLEL_PROPOSERS
PROPOSERS = _proposers.PROPOSERS
DflashProposer = _proposers.DflashProposer
DraftModelProposer = _proposers.DraftModelProposer
HeadProposer = _proposers.HeadProposer
Step3p5LayerProposer = _proposers.Step3p5LayerProposer
Step3p5MTPProposer = _proposers.Step3p5MTPProposer
create_proposer = _proposers.create_proposer
strategy_of = _proposers.strategy_of
prepare_inputs_padded = _proposers.prepare_inputs_padded
proposer_class = _proposers.proposer_class
HOST = hosts.module("drafting.host").HOST
PREPARED = hosts.module("drafting.records").PREPARED


class StockProposer:
    """Stands for vllm-ascend's proposer."""

    def __init__(self, rejected):
        self.rejected = rejected

    def prepare_inputs_padded(self):
        return "metadata", "indices", "to sample", self.rejected


def test_counts_of_rejected_tokens_are_int32():
    """Without Triton vllm-ascend sums booleans, which gives int64; the operator reads int32."""
    proposer = derive(StockProposer, "", {"prepare_inputs_padded": prepare_inputs_padded}, PREPARED)
    counts = torch.tensor([True, True]).sum(dim=0, keepdim=True)
    assert counts.dtype == torch.int64
    *_, rejected = proposer(rejected=counts).prepare_inputs_padded()
    assert rejected.dtype == torch.int32
    assert rejected.tolist() == [2]


def ours(config):
    """A host whose drafts we plan where ranks share sequences."""
    return True


def kept(config):
    """A host whose own proposal is kept there."""
    return False


def configured(method, layers=3, **sizes):
    parallel = {"prefill_context_parallel_size": 1, "decode_context_parallel_size": 1, **sizes}
    return SimpleNamespace(
        additional_config={},
        speculative_config=SimpleNamespace(
            method=method,
            use_step3p5_mtp=lambda: method == "step3.5",
            use_gemma4_mtp=lambda: False,
            uses_draft_model=lambda: method == "draft_model",
            draft_model_config=SimpleNamespace(
                is_hybrid=False,
                is_attention_free=False,
                max_model_len=64,
                hf_config=SimpleNamespace(num_nextn_predict_layers=layers),
                hf_text_config=PretrainedConfig(),
            ),
        ),
        parallel_config=SimpleNamespace(**parallel),
    )


@pytest.mark.parametrize(
    ("method", "proposer"),
    [
        ("draft_model", DraftModelProposer),
        ("eagle3", HeadProposer),
        ("mtp", HeadProposer),
        ("dflash", DflashProposer),
        ("ngram", None),
    ],
)
def test_each_method_has_its_proposer(method, proposer):
    assert proposer_class(method, configured(method), kept) is proposer


def test_step3p5_keeps_the_groups_that_vllm_ascend_gives_it():
    """With layers in turn; one alone drafts as other heads do, unless ranks share sequences."""
    assert proposer_class("mtp", configured("step3.5"), ours) is Step3p5MTPProposer
    shared = configured("step3.5", layers=1, decode_context_parallel_size=2)
    assert proposer_class("mtp", shared, ours) is Step3p5MTPProposer
    assert proposer_class("mtp", configured("step3.5", layers=1), ours) is Step3p5LayerProposer


def test_one_layer_of_step3p5_has_a_proposal_of_ours(monkeypatch):
    own = {name: value for name, value in vars(OfVllm).items() if not name.startswith("__")}

    def make(self, config, *args):
        vars(self).update(own, vllm_config=config)

    monkeypatch.setattr(Step3p5LayerProposer, "__init__", make)
    config = configured("step3.5", layers=1)
    config.speculative_config.enforce_eager = True
    made = create_proposer("mtp", config, torch.device("cpu"), None, HOST)
    assert isinstance(made, Step3p5LayerProposer)
    assert made.assembly.facts.enforce_eager


@pytest.mark.parametrize("method", ["draft_model", "eagle"])
def test_context_parallelism_keeps_vllm_ascends_own_proposal_unless_the_host_plans_it(method):
    shared = configured(method, decode_context_parallel_size=2)
    assert proposer_class(method, shared, ours) is PROPOSERS[method]
    proposer = proposer_class(method, shared, kept)
    assert proposer is CONTEXT_PARALLEL_PROPOSERS[method]
    assert "_get_model" in vars(proposer), "its configuration is the draft's own"
    assert "_propose" not in vars(proposer)


@pytest.mark.parametrize(
    "proposer",
    [*PROPOSERS.values(), Step3p5LayerProposer, *CONTEXT_PARALLEL_PROPOSERS.values()],
)
def test_a_proposer_has_one_class_of_ours(proposer):
    ours = [one for one in proposer.__mro__ if one.__module__.startswith("mkv_ascend")]
    assert ours == [proposer]


@pytest.mark.parametrize(
    ("method", "hybrid", "strategy"),
    [
        ("draft_model", False, Attention),
        ("draft_model", True, Recurrent),
        ("eagle3", False, Attention),
        ("dflash", False, MaskTokens),
    ],
)
def test_each_method_has_its_strategy(method, hybrid, strategy):
    config = configured(method)
    config.speculative_config.draft_model_config.is_hybrid = hybrid
    assert strategy_of(method, config) is strategy


class OfVllm:
    """A proposer as vLLM makes one for a draft model: it adds the sampled token to each row."""

    method, device, uses_mrope = "draft_model", torch.device("cpu"), False
    parallel_drafting, parallel_drafting_token_id = False, 0
    num_speculative_tokens, max_batch_size, max_model_len = 3, 4, 64
    extra_slots_per_request = net_num_new_slots_per_request = 1
    pass_hidden_states_to_model = _share_mtp_indices = False
    input_ids = positions = token_indices_to_sample = torch.zeros(32)
    hidden_states = None
    runner = SimpleNamespace(use_compress=False)

    def __init__(self, config, *args):
        self.vllm_config = config


def test_heads_that_read_the_targets_keys_stay_at_one_position():
    config = configured("mtp")
    config.speculative_config.use_gemma4_mtp = lambda: True
    strategy = strategy_of("mtp", config)
    assert strategy is TargetKeys
    sizes = strategy.sizes(facts(vllm_config=config), 64)
    plan = DraftPlan(sizes, [torch.zeros(4, 8, dtype=torch.int32)], [8])
    plan.next_positions[:2] = torch.tensor([8, 21])  # of the last tokens of the first pass
    assert plan.plan_later(2, 2).all_positions.tolist() == [[8, 21]] * 2


@pytest.mark.parametrize("recurrent", [False, True])
def test_rows_that_graphs_are_captured_for_are_those_of_the_first_pass(monkeypatch, recurrent):
    """What vLLM's attribute counts, by which decodes of MLA are told from prefills."""
    monkeypatch.setitem(PROPOSERS, "draft_model", OfVllm)
    config = configured("draft_model")
    config.speculative_config.enforce_eager = True
    config.speculative_config.draft_model_config.is_hybrid = recurrent
    made = create_proposer("draft_model", config, torch.device("cpu"), None, HOST)
    sizes = made.assembly.kind.sizes(made.assembly.facts, 64)
    rows = sizes.first_pass_rows(10, 2)
    assert rows == 10 + 2 * made.net_num_new_slots_per_request


def test_prefill_context_parallelism_with_dflash_is_refused():
    """Where ranks share keys alone, each keeps all of such a draft's."""
    with pytest.raises(NotImplementedError, match="dflash under prefill context parallelism"):
        proposer_class("dflash", configured("dflash", prefill_context_parallel_size=2), ours)
    shared = configured("dflash", decode_context_parallel_size=2)
    assert proposer_class("dflash", shared, kept) is DflashProposer


def test_passes_are_vllm_ascends_own_where_ranks_split_the_vocabulary(monkeypatch):
    """Its loop samples over the ranks. A dummy run is one of our passes otherwise."""
    given = {"num_input_tokens": 7, "batch_size": 2, "token_indices_to_sample": "rows"}
    ours, whole = [], torch.zeros(1)

    def run_dummy_passes(*args):
        ours.append(args)
        return whole

    proposer = SimpleNamespace(assembly=SimpleNamespace(run_dummy_passes=run_dummy_passes))
    monkeypatch.setattr(
        _proposers,
        "stock",
        lambda proposer: SimpleNamespace(_run_merged_draft=lambda **given: ("stock", given)),
    )
    monkeypatch.setattr(_proposers, "lmhead_tp_enable", lambda: True)
    assert _proposers._run_merged_draft(proposer, **given) == ("stock", given)
    assert ours == []
    monkeypatch.setattr(_proposers, "lmhead_tp_enable", lambda: False)
    assert _proposers._run_merged_draft(proposer, **given) is whole
    assert ours == [(7, 2, "rows")]


@pytest.mark.parametrize(
    ("kind", "first", "triton", "refused"),
    [
        ("MAMBA2", True, True, True),
        ("SHORT_CONV", True, True, True),
        ("SHORT_CONV", False, True, False),
        ("SHORT_CONV", True, False, False),
        ("GDN_ATTN", True, True, False),
    ],
)
def test_windows_with_channels_first_are_refused(kind, first, triton, refused, monkeypatch):
    """VLLM_SSM_CONV_STATE_LAYOUT=DS; the update of vllm-ascend, which needs Triton, writes none."""
    kernels = import_module("mkv_ascend.adapters.common.patches.recurrent")
    monkeypatch.setattr(kernels, "is_conv_state_dim_first", lambda: first)
    monkeypatch.setattr(kernels, "HAS_TRITON", triton)
    begun = []
    monkeypatch.setattr(kernels, "initialize_mamba_ssu_backend", lambda *args: begun.append(args))
    spec = MambaSpec(
        block_size=16,
        shapes=((2, 2),),
        dtypes=(torch.float32,),
        mamba_type=MambaAttentionBackendEnum[kind],
    )
    config = SimpleNamespace(mamba_config="mamba")
    caches = SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec)])
    if not refused:
        kernels.prepare(config, caches)
        assert begun == [("mamba", caches)]
        return
    with pytest.raises(ValueError, match="VLLM_SSM_CONV_STATE_LAYOUT=DS asks for windows"):
        kernels.prepare(config, caches)
    assert begun == []


def test_a_method_that_nobody_knows_is_refused_by_name():
    with pytest.raises(ValueError, match="telepathy"):
        create_proposer("telepathy", configured("telepathy"), torch.device("cpu"), None, HOST)


def test_a_draft_whose_proposals_vllm_ascend_makes_is_not_given_up():
    config = configured("medusa")
    config.additional_config = {"mkv_ascend": {"drafting": {"give_up_below": 0.5}}}
    with pytest.raises(NotImplementedError, match=r"method medusa\): leave the option out"):
        create_proposer("medusa", config, torch.device("cpu"), None, HOST)


@pytest.mark.parametrize("asked", [None, False, True])
def test_the_host_is_told_to_draft_eagerly_while_its_proposer_is_made(monkeypatch, asked):
    """It reads the option in its constructor; afterwards the option is the user's again."""
    config = configured("draft_model")
    config.speculative_config.enforce_eager = asked
    told = []

    class Proposer(OfVllm):
        def __init__(self, config, device, runner):
            super().__init__(config)
            told.append(config.speculative_config.enforce_eager)

    monkeypatch.setitem(PROPOSERS, "draft_model", Proposer)
    made = create_proposer("draft_model", config, torch.device("cpu"), None, HOST)
    assert told == [True]
    assert config.speculative_config.enforce_eager is asked
    assert made.assembly.facts.enforce_eager == bool(asked)


def test_the_token_after_a_chunk_is_the_prompts_next_one():
    """By vllm-ascend's own method: one request decodes, two are in the middle of their prompts."""
    device = torch.device("npu")
    proposer = object.__new__(HeadProposer)
    proposer.backup_next_token_ids = CpuGpuBuffer(
        3, dtype=torch.int32, device=device, pin_memory=False
    )
    unfinished = CpuGpuBuffer(3, dtype=torch.int64, device=device, pin_memory=False)
    unfinished.np[:2] = [0, 2]
    proposer.runner = SimpleNamespace(
        discard_request_indices=unfinished, optimistic_seq_lens_cpu=torch.tensor([4, 9, 6, 0])
    )
    texts = {"a": [10, 11, 12, 13, 14, 15], "b": [20] * 9, "c": list(range(30, 40))}
    batch = SimpleNamespace(
        num_reqs=3,
        req_ids=list(texts),
        num_tokens_no_spec=np.array([6, 9, 10]),
        vocab_size=100,
    )
    requests = {
        name: SimpleNamespace(get_token_id=text.__getitem__, prompt_token_ids=text)
        for name, text in texts.items()
    }
    sampled = torch.tensor([[1, -1], [2, 3], [4, -1]], dtype=torch.int32, device=device)
    tokens, counts = proposer.prepare_next_token_ids_padded(
        sampled, requests, batch, unfinished.copy_to_gpu(), 2
    )
    assert tokens.tolist() == [texts["a"][4], 3, texts["c"][6]]
    assert counts.tolist() == [0, 2, 0]
    assert batch.num_tokens_no_spec.tolist() == [6, 9, 10], "the runner's batch was changed"


def first_pass(more, state):
    """The first pass of a proposal for two requests, with that many rows more for each."""
    table = torch.zeros(4, 8, dtype=torch.int32)
    plan = DraftPlan(Sizes(3, 4, 32, 64, shift=not more), [table], [8])
    starts = torch.tensor([0, 4, 5], dtype=torch.int32)
    lengths = torch.tensor([17, 30], dtype=torch.int32)
    target = SimpleNamespace(
        max_query_len=4,
        attn_state=state,
        positions=torch.full((5,), 99),
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=lengths,
        seq_lens_cpu=lengths,
        _seq_lens_cpu=lengths,
        seq_lens_cpu_upper_bound=lengths,
    )
    none, positions = torch.zeros(2), torch.arange(9)
    output = TargetOutput(
        none, none, none, None, None, starts, starts, lengths, lengths, 4, common=target
    )
    draft = SimpleNamespace(
        buffers=DraftBuffers(none, positions, none), share_rows=lambda rows: (rows, None)
    )
    return Planner(draft, plan, None).first_batch(output, 5 + 2 * more)


@pytest.mark.parametrize("more", [0, 1])
def test_common_metadata_of_the_first_pass_counts_the_rows_it_adds(more):
    """Rejected tokens are rows of the pass: its lengths count them, as the target's do."""
    batch = first_pass(more, AscendAttentionState.DecodeOnly)
    common = CommonMetadata(AscendAttentionState.ChunkedPrefill).of(batch)
    starts, lengths = [0, 4 + more, 5 + 2 * more], [17 + more, 30 + more]
    assert common.query_start_loc_cpu.tolist() == starts
    assert common._seq_lens_cpu.tolist() == common.seq_lens_cpu.tolist() == lengths
    assert common.seq_lens_cpu_upper_bound.tolist() == lengths
    assert common.max_query_len == 4 + more
    assert common.positions.tolist() == list(range(5 + 2 * more))
    assert batch.common.max_query_len == 4, "the target's metadata was changed"
    # A decode has one token; with one more it is none.
    decodes = common.attn_state is AscendAttentionState.DecodeOnly
    assert decodes == (more == 0)


@pytest.mark.parametrize("reads_caches", [False, True])
def test_a_prefill_reads_caches_where_layers_have_no_keys(reads_caches):
    """vllm-ascend attends to the keys of the pass itself in the state of a prefill."""
    batch = first_pass(0, AscendAttentionState.PrefillNoCache)
    common = CommonMetadata(AscendAttentionState.SpecDecoding, reads_caches=reads_caches).of(batch)
    read = common.attn_state is AscendAttentionState.ChunkedPrefill
    assert read == reads_caches


def proposer_of_text():
    """One whose draft takes no images; its assembly takes any model."""
    draft = SimpleNamespace(loaded=SimpleNamespace(layers={}))
    assembly = SimpleNamespace(draft=draft, facts=None, model_loaded=lambda *_: None)
    host = SimpleNamespace(draft_class=lambda facts: None)
    return SimpleNamespace(
        assembly=assembly,
        draft_host=host,
        supports_mm_inputs=False,
        model=None,
        _create_draft_vllm_config=lambda: None,
        _draft_attn_layer_names=(),
    )


class MultiModal:
    """A target whose configuration names its image token as newer ones do."""

    supports_multimodal = True

    def __init__(self):
        self.config = SimpleNamespace(image_token_id=7)

    def get_language_model(self):
        return torch.nn.Module()

    def modules(self):
        return []


def test_a_target_that_names_its_image_token_otherwise_gets_a_draft(monkeypatch):
    """vllm-ascend 0.23.0 asks Gemma 4's configuration for ``image_token_index``."""
    seen, target = [], MultiModal()
    stock = SimpleNamespace(load_model=lambda model: seen.append(model.config.image_token_index))
    monkeypatch.setattr(_proposers, "stock", lambda proposer: stock)
    _proposers.load_model(proposer_of_text(), target)
    assert seen == [7]
    assert vars(target.config) == {"image_token_id": 7}


def test_a_target_of_language_alone_is_asked_for_nothing(monkeypatch):
    seen, target = [], torch.nn.Module()
    monkeypatch.setattr(_proposers, "stock", lambda _: SimpleNamespace(load_model=seen.append))
    _proposers.load_model(proposer_of_text(), target)
    assert seen == [target]
