# SPDX-License-Identifier: Apache-2.0
"""When a request of padding stands for tokens of no request; engines show why it must.

``tests/emulated/drafting/test_shared_tokens.py`` has these engines.
"""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from mkv_ascend.adapters.common import padded_tokens


def runner_of(ends, *, mla=False):
    """A batch whose requests end at these tokens, of a runner that adds one as vllm-ascend's."""
    starts = SimpleNamespace(np=np.array([0, *ends, 0, 0]))

    def add(query_start_loc, tokens, requests, count):
        assert query_start_loc is starts
        assert count <= requests
        starts.np[requests + 1] = tokens
        return requests + 1

    return SimpleNamespace(
        vllm_config=object(),
        model_config=SimpleNamespace(use_mla=mla),
        query_start_loc=starts,
        _pad_query_start_loc_for_fia=add,
    )


@pytest.mark.parametrize(
    ("shares", "mla", "asked", "requests"),
    [
        (True, False, {"num_tokens": 3, "num_tokens_padded": 4}, 2),
        (True, False, {"num_tokens": 3, "num_tokens_padded": 4, "num_reqs_padded": 1}, 2),
        (True, False, {"num_tokens": 3, "num_tokens_padded": 3}, None),
        (True, False, {"num_tokens": 3}, None),
        (False, False, {"num_tokens": 3, "num_tokens_padded": 4}, None),
        # Its kernels are given lengths of queries in another way.
        (True, True, {"num_tokens": 3, "num_tokens_padded": 4}, None),
        (
            True,
            False,
            {"num_tokens": 3, "num_tokens_padded": 4, "for_cudagraph_capture": True},
            None,
        ),
    ],
)
def test_tokens_of_no_request_get_one(shares, mla, asked, requests, monkeypatch):
    host = SimpleNamespace(enable_sp=lambda _config: shares)
    monkeypatch.setitem(sys.modules, "vllm_ascend.utils", host)
    runner, given = runner_of([3], mla=mla), {"num_reqs": 1, **asked}
    padded_tokens.cover_padding(runner, given)
    assert given == {"num_reqs": 1, **asked, **({} if requests is None else {"num_reqs_padded": 2})}
    assert runner.query_start_loc.np.tolist() == ([0, 3, 4, 0] if requests else [0, 3, 0, 0])
