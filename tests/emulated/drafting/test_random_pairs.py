# SPDX-License-Identifier: Apache-2.0
"""A slice of `python -m reliability pairs`: random models of random classes, random options."""

import json

import pytest

from reliability.__main__ import main
from tests.support import hosts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly("what its engines take has not been measured on an idle machine"),
]
COUNT = 4


@pytest.mark.parametrize("runner", hosts.ADAPTER.RUNNERS)
def test_random_pairs_are_right_token_by_token(runner, capsys):
    options = ["--seed", "15", "--count", str(COUNT), "--runner", runner, "--json"]
    status = main(["pairs", *options])
    found = json.loads(capsys.readouterr().out)
    assert [one["reason"] for one in found if one["result"] not in ("works", "refused")] == []
    assert status == 0
    worked = [one["judgement"] for one in found if one["result"] == "works"]
    assert len(worked) >= COUNT - 1
    assert sum(one["judged"]["target"] for one in worked) > 100
    assert sum(one["judged"]["draft"] for one in worked) > 100
    assert sum(one["accepted"] for one in worked) > 10
