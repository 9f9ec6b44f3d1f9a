# SPDX-License-Identifier: Apache-2.0
"""The dashboard of docs/dashboards asks for metrics that exist."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

from mkv_ascend import metrics

REPOSITORY = Path(__file__).resolve().parents[3]
DASHBOARD = json.loads((REPOSITORY / "docs/dashboards/mkv_ascend.json").read_text())
NAME = re.compile(r"\b(?:vllm:|mkv_ascend_)[a-z_]+")
OURS = {metric.name: metric for metric in metrics.METRICS}


def expressions() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def names_of_vllm() -> set[str]:
    """Names in the sources of the installed vLLM, whose counters are written without ``_total``."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0], "v1")
    sources = [*folder.glob("metrics/*.py"), folder / "spec_decode/metrics.py"]
    return {name for path in sources for name in NAME.findall(path.read_text())}


def test_every_metric_is_one_that_we_or_vllm_export() -> None:
    asked = {name for expression in expressions() for name in NAME.findall(expression)}
    theirs = names_of_vllm()
    for name in asked:
        assert name in OURS or name.removesuffix("_total") in theirs, name
    assert set(OURS) <= asked, "a metric that no panel shows"
