# SPDX-License-Identifier: Apache-2.0
"""Workflows of the repository's host, which nothing here runs, name what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from mkv_ascend.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def steps(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_commands_of_a_workflow_exist(path: Path) -> None:
    runs = "\n".join(step["run"] for step in steps(path) if "run" in step)
    assert set(re.findall(r"^make ([a-z]+)", runs, re.MULTILINE)) <= TARGETS
    assert set(re.findall(r"^mkv-ascend ([a-z]+)", runs, re.MULTILINE)) <= set(COMMANDS)
    for file in re.findall(r"(?:^| )(\.ci/\S+|requirements/\S+|\./\S+)", runs):
        assert (ROOT / file).exists(), file


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_job_has_an_end_and_least_rights(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] > 0, name
        assert {job.get("needs", name)} <= set(workflow["jobs"])
        # Each value of the matrix that is used is there.
        used = set(re.findall(r"\$\{\{ matrix\.(\w+) \}\}", str(job)))
        assert used <= set(job.get("strategy", {}).get("matrix", {})), name


def test_what_is_published_was_built_and_installed() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    assert (jobs["publish"]["needs"], jobs["bare"]["needs"]) == ("bare", "build")
    uploaded = {
        step["with"]["name"]
        for step in jobs["build"]["steps"]
        if "upload-artifact" in step.get("uses", "")
    }
    assert set(jobs["publish"]["strategy"]["matrix"]["distribution"]) == uploaded
    assert "refs/tags/v" in jobs["publish"]["if"]
