# SPDX-License-Identifier: Apache-2.0
"""Why a test of vllm-ascend does not pass here: one reason for each group of tests.

An entry is for tests whose id matches ``tests`` and which end with an error that matches ``error``
(regular expressions, searched for). The first that matches counts. A test that passes although an
entry names it says nothing against the entry: the error must match too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Reason:
    """``why`` the tests do not apply to the emulated NPU, or to this plugin."""

    tests: str
    error: str
    why: str


ANY = ""

REASONS = (
    Reason(ANY, r"emulated NPU has no", "the emulated NPU does not have this operator"),
    Reason(
        r"test_chunk_fwd_o_310",
        r"chunk_fwd_o: h has shape",
        "on a 310P this operator takes states of another shape; the emulated NPU is an A2",
    ),
    Reason(
        r"test_recurrent_gated_delta_rule_v310",
        r"libnnopbase\.so: cannot open",
        "the test loads libraries of CANN by itself",
    ),
    Reason(
        r"multicard_ops_a[23]",
        ANY,
        "operators that compute and communicate in one (dispatch_ffn_combine, "
        "dispatch_gmm_combine_decode, matmul_allreduce_add_rmsnorm) are not emulated",
    ),
    Reason(
        r"compilation\.a2\.test_acl_graph",
        r"does not have the attribute '_npu_setStream'",
        "the test patches a function of torch_npu's native module, on which the emulated "
        "torch.npu.stream is not built",
    ),
)


def reason_for(test: str, error: str) -> str | None:
    """The reason why ``test`` ends with ``error``; None if none is known."""
    for reason in REASONS:
        if re.search(reason.tests, test) and re.search(reason.error, error):
            return reason.why
    return None
