# SPDX-License-Identifier: Apache-2.0
"""Only versions that an adapter knows are accepted, and only their own sources."""

import shutil

import pytest

from mkv_ascend.adapters import installed as installed_host
from mkv_ascend.adapters.fingerprints import PARTS, HostSource, read
from mkv_ascend.adapters.refusal import StartUpRefused
from mkv_ascend.plugin import versions
from tests.support import hosts

COORDINATOR = "vllm_ascend/patch/platform/patch_kv_cache_coordinator.py"
COORDINATOR_IS_PATCHED = hosts.only_on(
    "vllm_ascend_0_23", "0.30.0rc2 cuts prefix hits of all groups itself, so nothing replaces them"
)


@pytest.mark.parametrize(
    ("vllm", "vllm_ascend", "folder"),
    [
        ("0.23.0", "0.23.0", "vllm_ascend_0_23"),
        ("0.23.0+empty", "0.23.0.post1", "vllm_ascend_0_23"),
        ("0.23.0+cu129", "0.23.0", "vllm_ascend_0_23"),
        ("0.30.0+empty", "0.30.0rc2", "vllm_ascend_0_30"),
    ],
)
def test_supported_versions_have_an_adapter(vllm, vllm_ascend, folder):
    installed = {"vllm": vllm, "vllm-ascend": vllm_ascend}
    assert installed_host.version_problem(installed) is None
    assert f"mkv_ascend.adapters.{folder}" == installed_host.adapter_for(installed).PACKAGE


@pytest.mark.parametrize(
    ("vllm", "vllm_ascend"),
    [
        ("0.23.1", "0.23.0"),
        ("0.23.0", "0.23.0rc1"),
        ("0.23.0", "0.23.0.post2"),
        ("0.23.0", "0.30.0rc2"),
        ("0.30.0", "0.23.0"),
        (None, "0.23.0"),
    ],
)
def test_other_versions_are_refused_with_what_is_known(vllm, vllm_ascend):
    problem = installed_host.version_problem({"vllm": vllm, "vllm-ascend": vllm_ascend})
    assert problem is not None
    assert f"vllm {vllm or 'missing'}" in problem
    assert f"vllm-ascend {vllm_ascend}" in problem
    assert "vllm 0.30.0 and vllm-ascend 0.30.0rc2, or " in problem
    assert "vllm 0.23.0 and vllm-ascend 0.23.0 or 0.23.0.post1" in problem
    assert "Install vllm==0.23.0 vllm-ascend==0.23.0," in problem


def test_every_version_that_is_served_has_its_fingerprints():
    for adapter in installed_host.adapters():
        recorded = read(adapter.FINGERPRINTS)
        assert {name: tuple(found) for name, found in recorded.items()} == dict(adapter.VERSIONS)


def test_no_version_is_watched_less_than_the_first():
    """The file has of later ones only what is otherwise."""
    for adapter in installed_host.adapters():
        for recorded in read(adapter.FINGERPRINTS).values():
            first, *others = recorded.values()
            assert len(first["names"]) > 50
            for other in others:
                assert all(first[part].keys() <= other[part].keys() for part in PARTS)
                assert other != first


@pytest.fixture
def other_source(tmp_path):
    """The installed host with a copy of vllm-ascend, and a file of it that a test may change."""
    source = versions.installed_source()
    theirs = source.folders["vllm_ascend"]
    ours = tmp_path / "vllm_ascend"
    shutil.copytree(theirs / "vllm_ascend", ours, symlinks=True, ignore=_not_sources)
    return HostSource({**source.folders, "vllm_ascend": tmp_path}), tmp_path / COORDINATOR


def _not_sources(folder, names):
    return [name for name in names if "." in name and not name.endswith(".py")]


def problem_of(source):
    return versions.drift_problem(installed_host.installed_versions(), source)


def test_the_installed_sources_are_the_recorded_ones():
    assert problem_of(versions.installed_source()) is None


def test_comments_and_formatting_are_no_drift(other_source):
    source, file = other_source
    text = file.read_text(encoding="utf-8")
    file.write_text("# A comment.\n" + text.replace("\n\n\n", "\n\n\n\n"), encoding="utf-8")
    assert problem_of(source) is None


@COORDINATOR_IS_PATCHED
def test_a_drifted_source_is_refused_by_the_name_of_its_patch(other_source):
    source, file = other_source
    text = file.read_text(encoding="utf-8")
    head = "def find_longest_cache_hit(\n"
    assert head in text
    place = text.index(":\n", text.index(head)) + 2
    changed = text[:place] + "        max_cache_hit_length -= 1\n" + text[place:]
    file.write_text(changed, encoding="utf-8")
    problem = problem_of(source)
    assert problem is not None
    assert "AscendHybridKVCacheCoordinator.find_longest_cache_hit is changed" in problem
    assert "'prefix hits of unlike groups'" in problem
    assert "python tools/port_report.py" in problem


@COORDINATOR_IS_PATCHED
def test_a_replaced_name_that_is_gone_is_refused(other_source):
    source, file = other_source
    text = file.read_text(encoding="utf-8")
    gone = text.replace("class AscendHybridKVCacheCoordinator", "class HybridCoordinator")
    file.write_text(gone, encoding="utf-8")
    assert "find_longest_cache_hit is gone" in problem_of(source)


def test_refusal_cannot_be_swallowed_as_an_exception():
    refusal = StartUpRefused("reason")
    assert not isinstance(refusal, Exception)
    assert refusal.code == "mkv_ascend: reason"
