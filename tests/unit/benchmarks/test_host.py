# SPDX-License-Identifier: Apache-2.0
"""Which environment ``--host`` of a benchmark means."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import host


@pytest.fixture(autouse=True)
def environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clone with two environments, of which the first runs."""
    for name, version in ((".venv", "0.23.0"), (".venv-0.30", "0.30.0rc2")):
        packages = tmp_path / name / "lib" / "python3.11" / "site-packages"
        (packages / f"vllm_ascend-{version}.dist-info").mkdir(parents=True)
    monkeypatch.setattr(host, "ROOT", tmp_path)
    monkeypatch.setattr(host, "installed", lambda: "0.23.0")


@pytest.mark.parametrize("version", ["0.3", "0.31", "0.23.1"])
def test_no_other_version_passes_for_it(version: str) -> None:
    assert host.interpreter_with(version) is None
    with pytest.raises(LookupError, match=rf"this one has 0\.23\.0; `make setup HOST={version}`"):
        host.go_on_with(version, "benchmarks.drafting", [])


def test_a_model_runner_that_the_host_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "adapter", lambda: SimpleNamespace(RUNNERS=("v1",)))
    host.require_runner("v1")
    with pytest.raises(LookupError, match=r"has no model runner v2, only v1; --host 0\.30"):
        host.require_runner("v2")
