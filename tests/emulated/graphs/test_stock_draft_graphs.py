# SPDX-License-Identifier: Apache-2.0
"""Four defects of vllm-ascend 0.23.0 with draft models and graphs, run in its own code; no engine.

Its proposers run on stand-ins that have only what their methods read. Each test shows three things:
its method fails, it does not fail without the cause, and ours is right in the same place (or the
test names one on an engine that shows this). If a defect no longer shows, the installed vllm-ascend
has corrected it: remove the test, and the record that names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

# Before the rest of vllm-ascend: its modules import each other in a circle.
import vllm_ascend.ops  # noqa: F401  # isort: skip
from vllm.compilation.monitor import set_cudagraph_capturing_enabled
from vllm.config import CUDAGraphMode
from vllm.forward_context import BatchDescriptor, override_forward_context
from vllm.v1.utils import CpuGpuBuffer
from vllm_ascend.attention.utils import AscendCommonAttentionMetadata
from vllm_ascend.compilation.acl_graph import ACLGraphWrapper
from vllm_ascend.spec_decode import llm_base_proposer
from vllm_ascend.spec_decode.draft_proposer import AscendDraftModelProposer
from vllm_ascend.spec_decode.eagle_proposer import AscendEagleProposer
from vllm_ascend.spec_decode.llm_base_proposer import AscendSpecDecodeBaseProposer
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

from mkv_ascend.drafting.plan import DraftPlan, Sizes
from tests.support import hosts
from tests.support.draft_facts import facts

pytestmark = pytest.mark.host("0.23")

Assembly = hosts.module("drafting.assembly").Assembly
_proposers = hosts.module("drafting.proposers")
HOST = hosts.module("drafting.host").HOST
Attention = hosts.module("drafting.strategies").Attention
DraftModelProposer = _proposers.DraftModelProposer

DEVICE = torch.device("npu:0")
K = 3
VERIFIED = K + 1
"""Tokens of a request in a verify step."""
MOST_REQUESTS, MOST_TOKENS, MAX_MODEL_LEN = 8, 96, 512
BLOCK = 128


@contextmanager
def forward_context(metadata: Any, _config: Any, **given: Any) -> Iterator[None]:
    """Stands for vllm-ascend's: the fields that proposals and graphs read."""
    fields = {
        "attn_metadata": metadata,
        "cudagraph_runtime_mode": given["aclgraph_runtime_mode"],
        "batch_descriptor": given["batch_descriptor"],
        "is_draft_model": True,
    }
    with override_forward_context(SimpleNamespace(**fields)):  # type: ignore[arg-type]
        yield


@pytest.fixture(autouse=True)
def _context(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(llm_base_proposer, "set_ascend_forward_context", forward_context)
    set_cudagraph_capturing_enabled(True)
    yield
    set_cudagraph_capturing_enabled(False)


def integers(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32, device=DEVICE)


def runner(mode: CUDAGraphMode = CUDAGraphMode.FULL_DECODE_ONLY) -> SimpleNamespace:
    """What the proposers' methods read of vllm-ascend's runner, and two methods of its own."""
    stand_in = SimpleNamespace(
        attn_groups=[],
        max_num_reqs=MOST_REQUESTS,
        num_spec_tokens=K,
        uniform_decode_query_len=VERIFIED,
        use_async_scheduling=False,
        dynamic_eplb=False,
        arange_np=np.arange(MOST_TOKENS, dtype=np.int32),
        compilation_config=SimpleNamespace(cudagraph_mode=mode),
        input_batch=SimpleNamespace(lora_id_to_lora_request={}, req_ids=["a"]),
        get_model=lambda: None,
        draft_token_ids_event=torch.npu.Event(),
        draft_token_ids_copy_stream=torch.npu.Stream(),
        draft_token_ids_cpu=torch.zeros(MOST_REQUESTS, K, dtype=torch.int64, pin_memory=True),
        _sync_metadata_across_dp=lambda tokens, is_draft_model: (tokens, None, None),
    )
    stand_in.cudagraph_dispatcher = SimpleNamespace(dispatch=dispatch)
    for method in ("_pad_query_start_loc_for_fia", "_copy_draft_token_ids_to_cpu"):
        setattr(stand_in, method, getattr(NPUModelRunner, method).__get__(stand_in))
    return stand_in


def dispatch(num_tokens: int, **_: Any) -> tuple[CUDAGraphMode, BatchDescriptor]:
    """As vLLM's for verify steps: up to the next number of tokens that is some requests'."""
    requests = -(-num_tokens // VERIFIED)
    return CUDAGraphMode.FULL, BatchDescriptor(requests * VERIFIED, requests, uniform=True)


def proposer(cls: type[Any], method: str = "draft_model") -> Any:
    """A proposer of ``cls`` whose draft is a function of nothing."""
    made = object.__new__(cls)
    made.runner = runner()
    made.method = method
    made.device = DEVICE
    made.vllm_config = SimpleNamespace(
        compilation_config=made.runner.compilation_config,
        model_config=SimpleNamespace(is_deepseek_mla=False, use_mla=False),
        scheduler_config=SimpleNamespace(max_num_seqs=MOST_REQUESTS),
    )
    flags = ("uses_mrope", "supports_mm_inputs", "use_compress", "parallel_drafting", "enable_enpu")
    for name in (*flags, "pass_hidden_states_to_model"):
        setattr(made, name, False)
    made.use_cuda_graph = made.needs_extra_input_slots = made.use_eagle = True
    made.uses_xdrope_dim = made.draft_uses_xdrope_dim = made.parallel_drafting_token_id = 0
    made.pcp_size = made.dcp_size = 1
    made.extra_slots_per_request = made.net_num_new_slots_per_request = 1
    made.num_speculative_tokens, made.decode_threshold = K, VERIFIED
    made.max_model_len, made.max_batch_size = MAX_MODEL_LEN, MOST_REQUESTS
    made.input_ids, made.positions = integers(MOST_TOKENS), integers(MOST_TOKENS)
    made.token_indices_to_sample = integers(MOST_TOKENS)
    made.is_rejected_token_mask = integers(MOST_TOKENS).bool()
    made.is_masked_token_mask = integers(MOST_TOKENS).bool()
    made.arange = torch.arange(MOST_TOKENS, dtype=torch.int32, device=DEVICE)
    spec = SimpleNamespace(block_size=BLOCK)
    made.draft_attn_groups = [SimpleNamespace(backend=None, kv_cache_spec=spec)]
    made.model = SimpleNamespace()
    made._run_merged_draft = lambda **given: torch.zeros(
        given["batch_size"], K, dtype=torch.int64, device=DEVICE
    )
    made._runnable = made._run_merged_draft
    return made


def dummy_run(drafter: Any, requests: int) -> None:
    """As at start-up, where graphs are captured for so many requests."""
    tokens = requests * VERIFIED
    drafter.dummy_run(
        tokens,
        num_reqs=requests,
        aclgraph_runtime_mode=CUDAGraphMode.FULL,
        batch_descriptor=BatchDescriptor(tokens, requests, uniform=True),
    )


def test_stock_captures_no_passes_of_a_draft_model() -> None:
    """It makes the wrapper and its stream in a method that vLLM's draft model leaves empty.

    Every mode with full graphs stops there, the default too. Ours on engines:
    test_draft_graphs.py::test_independent_drafts and ::test_default_settings_of_vllm_serve.
    """
    stock, head = proposer(AscendDraftModelProposer), proposer(AscendEagleProposer, "eagle3")
    target = SimpleNamespace()
    for one in (stock, head):
        one._maybe_share_lm_head(target)
    dummy_run(head, requests=2)
    assert head._runnable.concrete_aclgraph_entries, "what a head does where a draft model fails"
    with pytest.raises(AttributeError, match="no attribute 'update_stream'"):
        dummy_run(stock, requests=2)


def padded_verify_step(live: int, rows: int) -> AscendCommonAttentionMetadata:
    """Of ``live`` requests, in a graph for ``rows``: the block table has a row for each."""
    starts = torch.arange(rows + 1, dtype=torch.int32) * VERIFIED
    lengths = torch.tensor([17 + 9 * row for row in range(rows)], dtype=torch.int32)
    tables = torch.arange(1, 1 + 4 * rows, dtype=torch.int32).view(rows, 4)
    return AscendCommonAttentionMetadata(
        query_start_loc=starts.to(DEVICE),
        query_start_loc_cpu=starts,
        seq_lens=lengths.to(DEVICE),
        seq_lens_cpu=lengths,
        _seq_lens_cpu=lengths,
        num_reqs=live,
        num_actual_tokens=live * VERIFIED,
        num_input_tokens=rows * VERIFIED,
        max_query_len=VERIFIED,
        max_seq_len=int(lengths.max()),
        block_table_tensor=tables.to(DEVICE),
        slot_mapping=integers(MOST_TOKENS),
        positions=integers(MOST_TOKENS),
    )


def first_pass(common: AscendCommonAttentionMetadata) -> dict[str, Any]:
    """What the runner passes after it verified: tokens, positions and counts of rejected tokens."""
    requests = common.num_reqs
    ends = common.seq_lens_cpu[:requests, None]
    positions = (ends - VERIFIED + torch.arange(VERIFIED)).flatten()
    return {
        "target_token_ids": torch.arange(len(positions), dtype=torch.int32).to(DEVICE),
        "target_positions": positions.to(DEVICE),
        "next_token_ids": torch.arange(90, 90 + requests, dtype=torch.int32).to(DEVICE),
        "num_rejected_tokens_gpu": torch.tensor([1, 0, 2][:requests], dtype=torch.int32).to(DEVICE),
    }


def stock_slots(common: AscendCommonAttentionMetadata) -> list[int]:
    *_, extended, _ = proposer(AscendDraftModelProposer).set_inputs_first_pass(
        **first_pass(common), target_hidden_states=None, token_indices_to_sample=None, cad=common
    )
    return extended.slot_mapping.tolist()


def our_slots(common: AscendCommonAttentionMetadata) -> list[int]:
    ours = proposer(DraftModelProposer)
    sizes = Sizes(K - 1, MOST_REQUESTS, MOST_TOKENS, MAX_MODEL_LEN)
    plan = DraftPlan(sizes, [common.block_table_tensor], [BLOCK])
    given = {**first_pass(common), "target_hidden_states": None, "common_attn_metadata": common}
    buffers = _proposers.buffers_of(ours)
    ours.assembly = SimpleNamespace(draft=SimpleNamespace(buffers=buffers))
    rows = plan.expand(_proposers.target_output(ours, given), buffers)
    return plan.first_slots[0, :rows].tolist()


def test_stock_cannot_draft_eagerly_after_a_padded_verify_step() -> None:
    """What takes the padding off leaves the rows of padding in the block table.

    Ours on an engine: test_draft_graphs.py::test_a_draft_may_be_asked_to_run_eagerly.
    """
    live, rows = 2, 3
    padded = padded_verify_step(live, rows).unpadded(live * VERIFIED, live)
    with pytest.raises(RuntimeError, match="repeats must have the same size"):
        stock_slots(padded)
    fitting = padded_verify_step(live, live)
    slots = stock_slots(fitting)
    assert len(slots) == live * (VERIFIED + 1)
    assert slots.count(-1) == 1, "one token was rejected"
    assert our_slots(padded) == our_slots(fitting) == slots


class Built(Exception):  # noqa: N818 - not an error
    """The metadata of the first pass was asked for."""


def metadata_of_stocks_first_pass(live: int, graphs: bool) -> Any:
    """What vllm-ascend's ``_propose`` asks the builder of a draft model for."""
    stock = proposer(AscendDraftModelProposer)
    stock.use_cuda_graph = graphs
    common = padded_verify_step(live, live)
    buffers = {"device": DEVICE, "pin_memory": False, "dtype": torch.int32}
    stock.query_start_loc = CpuGpuBuffer(MOST_REQUESTS + 2, **buffers)
    stock.runner.seq_lens = integers(MOST_REQUESTS)
    stock.runner.seq_lens[:live] = common.seq_lens
    stock.runner.optimistic_seq_lens_cpu = stock.runner.seq_lens.cpu()
    for buffer in ("slot_mapping_group", "seq_lens_group", "query_start_loc_group"):
        setattr(stock, buffer, [integers(MOST_TOKENS)])

    def build(_: int, asked: Any, *__: Any) -> None:
        raise Built(asked)

    (group,) = stock.draft_attn_groups
    group.get_metadata_builder = lambda: SimpleNamespace(build=build)
    with pytest.raises(Built) as asked:
        stock._propose(
            **first_pass(common),
            target_hidden_states=None,
            token_indices_to_sample=None,
            common_attn_metadata=common,
            target_model_batch_desc=BatchDescriptor(live * VERIFIED, live, uniform=True),
            sampling_metadata=None,
        )
    return asked.value.args[0]


def test_stock_forgets_the_added_token_in_graphs() -> None:
    """It reads the target's lengths again, and pads starts past the rows that there are.

    Right tokens come of it, and fewer of them were drafted. Ours without an engine:
    test_proposers.py::test_common_metadata_of_the_first_pass_counts_the_rows_it_adds; on engines:
    test_draft_graphs.py::test_asynchronous_scheduling_and_chunks_beside_decodes, where a model
    accepts all that it drafted for itself.
    """
    (length,) = padded_verify_step(1, 1).seq_lens_cpu.tolist()
    eager, replayed = (metadata_of_stocks_first_pass(1, graphs) for graphs in (False, True))
    assert eager.seq_lens.tolist() == eager._seq_lens_cpu.tolist() == [length + 1]
    assert eager.query_start_loc.tolist() == [0, VERIFIED + 1]
    assert replayed.seq_lens.tolist() == replayed._seq_lens_cpu.tolist() == [length, 0]
    assert replayed.query_start_loc.tolist() == [0, 5, 9]
    assert replayed.num_input_tokens == 8 < 9


def drafted_in_a_graph(stock: Any, requests: int) -> torch.Tensor:
    """Draft tokens as its wrapper replays them, in the graph for so many requests."""
    descriptor = BatchDescriptor(requests * VERIFIED, requests, uniform=True)
    full = {"aclgraph_runtime_mode": CUDAGraphMode.FULL, "batch_descriptor": descriptor}
    with forward_context(None, None, **full):
        drafted: torch.Tensor = stock._runnable()
    return drafted


def test_stock_drafts_for_more_requests_than_there_may_be() -> None:
    """A graph of more tokens than requests may verify returns as many rows; the host has fewer.

    The draft model is given the wrapper that it lacks (the first test). Ours captures no such
    graph, and returns only the rows of live requests from a replay.
    """
    stock = proposer(AscendDraftModelProposer)
    AscendSpecDecodeBaseProposer._maybe_share_lm_head(stock, SimpleNamespace())
    assert isinstance(stock._runnable, ACLGraphWrapper)
    scheduled = SimpleNamespace(has_structured_output_requests=False)
    too_many = 2 * MOST_REQUESTS
    for requests in (MOST_REQUESTS, too_many):
        dummy_run(stock, requests)
        stock.runner._draft_token_ids = drafted_in_a_graph(stock, requests)
        assert stock.runner._draft_token_ids.shape == (requests, K)
        if requests == MOST_REQUESTS:
            stock.runner._copy_draft_token_ids_to_cpu(scheduled)
            continue
        with pytest.raises(RuntimeError, match=rf"\({MOST_REQUESTS}\).*\({too_many}\)"):
            stock.runner._copy_draft_token_ids_to_cpu(scheduled)

    ours, captured = proposer(DraftModelProposer), []
    # As create_proposer makes it: graphs are not the wrapper's.
    ours.use_cuda_graph = False
    ours.draft_host = HOST
    ours.assembly = Assembly(facts(max_requests=MOST_REQUESTS), Attention, HOST, None, None)
    ours.assembly.graphs = SimpleNamespace(
        shape=lambda requests, *counts: (requests, *counts),
        capture=captured.append,
        captured=captured,
    )
    for requests in (MOST_REQUESTS, too_many):
        dummy_run(ours, requests)
    assert captured == [(MOST_REQUESTS, None, None)]
