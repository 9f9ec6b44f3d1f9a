# SPDX-License-Identifier: Apache-2.0
"""Why a test of vllm-ascend does not pass here: one reason for each group of tests.

An entry of ``REASONS`` is for tests whose id matches ``tests`` and which end with an error that
matches ``error`` (regular expressions, searched for). The first that matches counts. A test that
passes although an entry names it says nothing against the entry: the error must match too.

Reasons of three kinds are counted apart. A test that shows that the emulated NPU deviates from a
device has none: it has failed, and what deviates is to be mended. A reason that accepts a failed
assertion would accept any wrong result: it names the test of ours that judges the result.

A file of ``NOT_RUN`` is not run at all: its tests start processes that would wait for one another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

CANNOT_RUN = "cannot run here"
"""It needs what a machine without an NPU cannot have, or more time than there is."""
GAP = "gap of the emulated NPU"
"""It needs what the emulated NPU could have."""
FAULT = "fault of the test"
"""It ends so on any device, with vllm-ascend alone too, or it asks for what an operator's
documentation refuses."""
KINDS = (CANNOT_RUN, GAP, FAULT)


@dataclass(frozen=True)
class Reason:
    """``why`` the tests do not apply to the emulated NPU, or to this plugin; one of KINDS.

    judged_by: our test (file::name) that judges what a failed assertion of theirs leaves open.
    """

    tests: str
    error: str
    why: str
    kind: str
    judged_by: str = ""


ANY = ""

NO_OPERATOR = ("grouped_matmul_swiglu_quant", "npu_hc_pre")
"""Operators that tests call and that the emulated NPU does not have. A test that meets another one
has failed."""

REASONS = (
    Reason(
        ANY,
        rf"emulated NPU has no torch(_npu|\.ops\._C_ascend)\.({'|'.join(NO_OPERATOR)});",
        "the emulated NPU does not have this operator",
        GAP,
    ),
    Reason(
        r"test_w4a4_(flatquant|laos_dynamic)\.\S+::test_apply_with_npu",
        r"npu_convert_weight_to_int4pack: weight has numbers from -\d+ to \d+; int4 holds",
        "the test packs weights of 8 bits as int4, which the documentation refuses and a device "
        "does not notice: it keeps the lowest 4 bits. The test looks at shapes alone",
        FAULT,
    ),
    Reason(
        r"test_fused_qkvzba_split_reshape_cat",
        r"Can't instantiate abstract class GatedDeltaNetAttention",
        "vLLM 0.23.0's class is abstract: the test ends so without this plugin, too",
        FAULT,
    ),
    Reason(
        r"test_chunk_kda",
        r"'int' object has no attribute 'to'",
        "Triton's interpreter counts loops in Python's integers; no layer calls this kernel, and "
        "for vLLM's, which Kimi-Linear calls, the emulated NPU has CPU kernels",
        GAP,
    ),
    Reason(
        r"test_chunk_kda",
        r"Timeout \(>",
        "interpreted, one call takes many minutes; no layer calls this kernel",
        CANNOT_RUN,
    ),
    Reason(
        r"test_fused_sigmoid_gating_delta_rule",
        r"Did you forget to add @triton\.jit",
        "Triton's interpreter does not reach an `exp` that a module keeps under a name of its own; "
        "vllm-ascend's layers call npu_recurrent_gated_delta_rule in place of this kernel",
        GAP,
    ),
    Reason(
        r"test_fused_sigmoid_gating_delta_rule",
        r"^ended with -(6|11): ",
        "the test gives the index 2 of states that are one: the kernel writes outside of them, "
        "which may end the process. With the index 0 it ends as the reason above says",
        FAULT,
    ),
    Reason(
        r"test_transpose_kv_cache_by_block\.\S+::test_(rejects_|empty_cache_requires_)",
        r"OperatorArgumentError: _C_ascend\.transpose_kv_cache_by_block: (kCache\[0\]|blockIDs) ",
        "0.30's test asks for the words in which vllm-ascend's extension refuses such caches; the "
        "emulated NPU refuses the same caches in words of its own",
        GAP,
    ),
    Reason(
        r"::test_transpose_kv_cache_by_block$",
        r"Timeout \(>",
        "the test makes 32 caches of up to 32 MiB, twice, for each of twelve cases; with fewer of "
        "them it passes, and 0.30's tests of the same operator on small caches pass as they are",
        CANNOT_RUN,
    ),
    Reason(
        r"test_apply_penalties\[npu:0-42-dtype\d-3-",
        r"AssertionError: assert False",
        "the test lets its first request have drafts before it: the kernel reads in front of its "
        "buffer, which its reference leaves out. All else of the result is right (one number of "
        "each differs)",
        FAULT,
        "tests/emulated/device/test_triton.py::"
        "test_vllm_ascends_penalties_count_the_drafts_before_a_token",
    ),
    Reason(
        r"test_hash_encoder",
        r"\"geqrf_cpu\" not implemented for 'Half'",
        "PyTorch has no QR decomposition in float16 for the CPU, in whose memory the device is",
        CANNOT_RUN,
    ),
    Reason(
        r"test_moe_init_routing_custom",
        r"emulated NPU has no \S+\.npu_moe_init_routing_custom with drop_pad_mode 1",
        "the emulated NPU does not have this mode of this operator",
        GAP,
    ),
    Reason(
        r"test_torch_npu_profiler",
        r"emulated NPU has no torch_npu\.profiler\.ProfilerActivity",
        "the emulated NPU has no times to measure, so it has no profiler",
        CANNOT_RUN,
    ),
    Reason(
        r"test_dequant_swiglu_quant",
        r"emulated NPU has no torch\.npu\.graph\(auto_dispatch_capture=True\)",
        "the test captures a graph in a way that vllm-ascend does not, and that is refused by name",
        GAP,
    ),
    Reason(
        r"test_(reshape_and_cache_bnsd|hamming_dist_top_k)",
        r"No module named 'npugraph_ex\.core'",
        "the test imports the inside of npugraph_ex, which is a stand-in here, and is about an "
        "operator that the emulated NPU does not have",
        GAP,
    ),
    Reason(
        r"triton\.test_causal_conv1d$",
        r"cannot import name 'causal_conv1d_fn' from 'vllm_ascend\.ops\.triton\.mamba",
        "the test imports a function that v0.23.0 of vllm-ascend does not have there",
        FAULT,
    ),
    Reason(
        r"test_npu_ipc_engine",
        r"No module named 'ray'",
        "the test needs Ray, an optional dependency of vLLM that is not installed here",
        CANNOT_RUN,
    ),
    Reason(
        r"test_chunk_fwd_o_310",
        r"chunk_fwd_o: h has shape",
        "on a 310P this operator takes states of another shape; the emulated NPU is an A2",
        CANNOT_RUN,
    ),
    Reason(
        r"test_recurrent_gated_delta_rule_v310",
        r"libnnopbase\.so: cannot open",
        "the test loads libraries of CANN by itself",
        CANNOT_RUN,
    ),
    Reason(
        r"test_set_inputs_first_pass_(parallel_drafting|draft_model)$",
        r"Could not run '_C_ascend::npu_copy_and_expand_eagle_inputs' with arguments from the",
        "0.30's test gives tensors of the host to an operator that vllm-ascend registers for the "
        "device alone",
        FAULT,
    ),
    Reason(
        r"test_sparse_mla_full_forward_uses_real_rows_and_latent_values\[True-",
        r"Could not run '_C_ascend::npu_scatter_nd_update_sk' with arguments from the 'CPU'",
        "0.30's test gives tensors of the host to an operator that vllm-ascend registers for the "
        "device alone; it replaces the one that is called where this one is not built",
        FAULT,
    ),
    Reason(
        r"v2\.test_pp_transport::test_pp_guard_noop_preserves_partition",
        r"^failed on teardown with \"AttributeError: .* no attribute 'VLLM_PP_LAYER_PARTITION'\"",
        "the test itself has passed. Then its file's fixture removes a variable of vllm.envs, and "
        "monkeypatch of pytest 9 removes it once more; that of pytest 8, which vllm-ascend asks "
        "for, sets it to what it was",
        FAULT,
    ),
    Reason(
        r"compilation\.a2\.test_acl_graph",
        r"does not have the attribute '_npu_setStream'",
        "the test patches a function of torch_npu's native module, on which the emulated "
        "torch.npu.stream is not built",
        GAP,
    ),
)


@dataclass(frozen=True)
class NotRun:
    """A file that is not run (its name), and why: the operators that it is about, which are not
    there, or another reason."""

    file: str
    operators: tuple[str, ...] = ()
    why: str = ""


NOT_RUN = (
    NotRun(
        "test_matmul_allreduce_add_rmsnorm",
        why="products of 10000 x 1024 x 5120, 30 of them on each of four ranks, take a CPU "
        "hours; tests/emulated/device/test_collectives.py judges the operator",
    ),
    NotRun("test_dispatch_ffn_combine", ("dispatch_ffn_combine",)),
    NotRun("test_dispatch_ffn_combine_bf16", ("dispatch_ffn_combine",)),
    NotRun("test_dispatch_ffn_combine_w4a8", ("dispatch_ffn_combine",)),
    NotRun("test_dispatch_gmm_combine_decode", ("dispatch_gmm_combine_decode",)),
)


def reason_not_to_run(file: str) -> Reason | None:
    """Why ``file`` (its path in the checkout) is not run; None if it is."""
    stem = file.rsplit("/", 1)[-1].removesuffix(".py")
    for entry in NOT_RUN:
        if entry.file == stem:
            if entry.why:
                return Reason(file, ANY, f"not run: {entry.why}", CANNOT_RUN)
            names = ", ".join(entry.operators)
            why = f"not run: the emulated NPU has no {names}, which computes and communicates"
            return Reason(file, ANY, why, GAP)
    return None


def reason_for(test: str, error: str) -> Reason | None:
    """The reason why ``test`` ends with ``error``; None if none is known."""
    for reason in REASONS:
        if re.search(reason.tests, test) and re.search(reason.error, error):
            return reason
    return None
