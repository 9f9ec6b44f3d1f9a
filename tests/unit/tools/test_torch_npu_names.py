# SPDX-License-Identifier: Apache-2.0
"""Names of torch_npu are read from our sources as wholes, and looked up in the stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest

import foreign_names
import port_report
import torch_npu_names
from mkv_ascend.adapters import installed as installed_host

SOURCE = """
import torch, torch_npu
from torch_npu import npu_rms_norm
from torch_npu.npu import Stream
free = torch_npu.npu.mem_get_info()[0]
torch_npu.npu.current_stream().wait_event(torch.npu.Event())
torch.ops._C_ascend.npu_lightning_indexer(torch.npu_is_no_module, torch_npu.__version__)
known = getattr(torch_npu, "emulated_extra_dtypes", frozenset())
"""


def test_a_chain_of_attributes_is_one_name(tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text(SOURCE)
    assert torch_npu_names.used([tmp_path / "ours.py"]) == [
        "torch_npu:_C_ascend.npu_lightning_indexer",
        "torch_npu:npu.Event",
        "torch_npu:npu.Stream",
        "torch_npu:npu.current_stream",
        "torch_npu:npu.mem_get_info",
        "torch_npu:npu_rms_norm",
    ]


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("npu.Stream", True),
        ("npu.streams_of_nobody", False),
        ("npu_rms_norm", True),
        ("npu_rms_norms", False),
        ("_C_ascend.npu_lightning_indexer", True),
        ("_C_ascend.npu_rms_norm", False),
        ("Format", True),
        ("Formats", False),
    ],
)
def test_operators_the_runtime_and_what_the_root_sets_are_found(name: str, offered: bool) -> None:
    assert torch_npu_names.is_offered(f"torch_npu:{name}") is offered


@pytest.mark.parametrize("adapter", installed_host.adapters(), ids=foreign_names.name_of)
def test_every_adapter_uses_names_that_are_offered(adapter) -> None:
    lines = port_report.of_torch_npu(adapter)
    assert "torch_npu:npu.Stream" in {line.name for line in lines}
    assert [line.name for line in lines if line.state != "same"] == []


def test_a_name_that_is_gone_breaks_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_npu_names, "is_offered", lambda name: name != "torch_npu:npu.Stream")
    lines = port_report.of_torch_npu(installed_host.adapter())
    assert [line.name for line in lines if line.state == "gone"] == ["torch_npu:npu.Stream"]
    assert port_report.breaks(lines)
