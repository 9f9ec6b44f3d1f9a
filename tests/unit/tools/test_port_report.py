# SPDX-License-Identifier: Apache-2.0
"""The port report tells same, changed and gone; a release is fetched by its hash or not at all."""

import ast
import hashlib
import io
import json
import os
import shutil
import tarfile
from importlib import metadata

import pytest

import host_release
import port_report
from mkv_ascend.adapters import installed as installed_host
from mkv_ascend.adapters.fingerprints import HostSource, fingerprint, read

WORKER = "vllm_ascend.worker.worker:NPUWorker.init_device"


@pytest.fixture
def unpacked(tmp_path):
    """The installed vllm-ascend's sources in another folder, as links."""
    theirs = port_report.environment()["vllm_ascend"] / "vllm_ascend"
    keep = shutil.ignore_patterns("*.so", "*.bin", "*.json", "_cann_ops_custom", "__pycache__")
    folder = tmp_path / "host" / "vllm_ascend"
    shutil.copytree(theirs, folder, ignore=keep, copy_function=os.symlink)
    return tmp_path / "host"


def change(folder, old, new):
    file = folder / "vllm_ascend" / "worker" / "worker.py"
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.unlink()
    file.write_text(text.replace(old, new), encoding="utf-8")


def lines_of(folder, capsys):
    status = port_report.main(["--host", str(folder), "--json"])
    return status, {line["name"]: line for line in json.loads(capsys.readouterr().out)}


def test_the_environment_is_what_is_recorded(capsys):
    assert port_report.main([]) == 0
    assert ", 0 gone" in capsys.readouterr().out


def test_what_is_recorded_is_what_the_adapter_names_today():
    host, adapter = HostSource(port_report.environment()), installed_host.adapter()
    for package, distribution in port_report.DISTRIBUTIONS.items():
        version = metadata.version(distribution).partition("+")[0]
        recorded = port_report.recorded(adapter)[distribution][version]
        assert port_report.record(adapter, host, package) == recorded, "see CONTRIBUTING.md"
        shipped = read(adapter.FINGERPRINTS)[distribution][version]["names"].values()
        assert {entry["use"] for entry in shipped} == {"read", "replaced"}


def test_later_versions_are_read_as_they_were_recorded(tmp_path):
    """Written are their differences: another print, another use, a name of their own."""
    used = {"print": "1", "use": "replaced", "patches": ["a patch"]}
    first = {"files": {"m": "1", "n": "2"}, "names": {"m:a": used, "n:b": used}}
    other = {
        "files": {**first["files"], "n": "3"},
        "names": {"m:a": {**used, "print": "2"}, "n:b": used, "n:c": used},
    }
    found = {"vllm-ascend": {"1.0": first, "1.0.post1": other}}
    path = tmp_path / "fingerprints.json"
    path.write_text(port_report._compact(port_report._differences(found)))
    assert read(path) == found
    written = json.loads(path.read_text())["vllm-ascend"]["1.0.post1"]
    assert (set(written["files"]), set(written["names"])) == ({"n"}, {"m:a", "n:c"})


def test_comments_and_documentation_are_the_same(unpacked, capsys):
    change(
        unpacked, "    def init_device(self):\n", "    def init_device(self):\n        # Ours.\n"
    )
    status, lines = lines_of(unpacked, capsys)
    assert (status, changed_of(lines)) == (0, set())


def test_a_changed_method_is_shown_with_its_difference(unpacked, capsys):
    change(unpacked, "    def init_device(self):\n", "    def init_device(self, again=True):\n")
    status, lines = lines_of(unpacked, capsys)
    assert status == 1
    assert lines[WORKER]["state"] == "changed"
    assert "+def init_device(self, again=True):" in lines[WORKER]["difference"]
    assert lines[WORKER]["patches"] == ["our platform, worker and model runner"]
    assert changed_of(lines) == {WORKER}


def changed_of(lines):
    """What is replaced or counted on, and is another; not classes that are only imported."""
    used = {name: line for name, line in lines.items() if line["use"] != "imported"}
    return {name for name, line in used.items() if line["state"] != "same"}


def test_a_name_that_is_gone_is_said_to_be_gone(unpacked, capsys):
    change(unpacked, "model_runner_v1 import NPUModelRunner\n", "model_runner_v1 import Runner\n")
    status, lines = lines_of(unpacked, capsys)
    assert (status, lines["vllm_ascend.worker.worker:NPUModelRunner"]["state"]) == (1, "gone")


def test_a_folder_without_a_host_is_no_pass(tmp_path, capsys):
    assert port_report.main(["--host", str(tmp_path)]) == 2
    assert "neither vllm/ nor vllm_ascend/" in capsys.readouterr().err


@pytest.fixture
def no_index(monkeypatch, tmp_path):
    """pip finds what lies in a folder, and nothing else."""
    folder = tmp_path / "archives"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def archive_in(folder):
    """A source archive of the right name; returns its hash."""
    files = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: vllm-ascend\nVersion: 0.23.0.post1\n",
        "setup.py": "from setuptools import setup\n"
        "setup(name='vllm-ascend', version='0.23.0.post1')\n",
        "vllm_ascend/__init__.py": "def register(): ...\n",
        "vllm_ascend/native.so": "no source",
    }
    path = folder / "vllm_ascend-0.23.0.post1.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"vllm_ascend-0.23.0.post1/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.packaging
def test_without_an_index_the_release_is_an_error_and_no_pass(
    no_index, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(host_release, "CACHE", tmp_path / "cache")
    with pytest.raises(host_release.FetchError, match="A package index must be reachable"):
        host_release.fetch("0.23.0.post1", tmp_path / "cache")
    monkeypatch.setattr(host_release.fetch, "__defaults__", (tmp_path / "cache",))
    assert port_report.main(["--release", "0.23.0.post1"]) == 2
    assert "could not fetch vllm-ascend==0.23.0.post1" in capsys.readouterr().err


@pytest.mark.packaging
def test_an_archive_with_another_hash_is_refused(no_index, tmp_path):
    archive_in(no_index)
    with pytest.raises(host_release.FetchError, match="HASHES"):
        host_release.fetch("0.23.0.post1", tmp_path / "cache")
    assert [*(tmp_path / "cache").iterdir()] == []


@pytest.mark.packaging
def test_sources_of_a_release_are_kept(no_index, tmp_path, monkeypatch):
    release = host_release.Release("vllm-ascend==0.23.0.post1", archive_in(no_index))
    monkeypatch.setitem(host_release.RELEASES, "0.23.0.post1", release)
    first = host_release.fetch("0.23.0.post1", tmp_path / "cache")
    assert [path.name for path in first.rglob("*.*")] == ["__init__.py"]
    shutil.rmtree(no_index)
    assert host_release.fetch("0.23.0.post1", tmp_path / "cache") == first


@pytest.mark.parametrize(
    "other",
    [
        "def f(x):\n    '''Documented.'''\n    return (x + 1)  # a comment",
        "def f(x): return x + 1",
        "def f( x ):\n\n    return x+1\n",
    ],
)
def test_fingerprints_do_not_count_what_does_not_run(other):
    assert print_of(other) == print_of("def f(x):\n    return x + 1")


@pytest.mark.parametrize(
    "other",
    [
        "def f(x):\n    return x + 2",
        "def f(y):\n    return y + 1",
        "def f(x=0):\n    return x + 1",
        "def f(x) -> int:\n    return x + 1",
        "@g\ndef f(x):\n    return x + 1",
        "async def f(x):\n    return x + 1",
    ],
)
def test_fingerprints_count_all_that_runs(other):
    assert print_of(other) != print_of("def f(x):\n    return x + 1")


def print_of(text):
    return fingerprint(ast.parse(text).body[0])
