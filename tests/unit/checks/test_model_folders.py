# SPDX-License-Identifier: Apache-2.0
"""A repository's name is judged by what the hub's cache has of it; nothing is fetched."""

import json
import shutil
import socket
from pathlib import Path

import pytest

from mkv_ascend import cli
from mkv_ascend.checks.model_folders import names_without_folder, with_model_folders

CONFIGS = Path(__file__).resolve().parents[2] / "data" / "configs"
COMMIT = "0" * 40


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Puts a published configuration into an empty cache; a connection is an error."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))

    def no_network(*arguments):
        raise AssertionError("asked the network")

    monkeypatch.setattr(socket, "create_connection", no_network)

    def put(repository, model, reference="main"):
        folder = tmp_path / f"models--{repository.replace('/', '--')}"
        snapshot = folder / "snapshots" / COMMIT
        snapshot.mkdir(parents=True, exist_ok=True)
        shutil.copy(CONFIGS / model / "config.json", snapshot)
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / reference).write_text(COMMIT)
        return str(snapshot)

    return put


def test_target_and_draft_are_found_in_the_cache(cache):
    target = cache("meta-llama/Llama-3.1-8B", "Llama-3.1-8B")
    draft = cache("Qwen/Qwen3-0.6B", "Qwen3-0.6B", reference="v2")
    asked = {
        "model": "meta-llama/Llama-3.1-8B",
        "speculative_config": {"model": "Qwen/Qwen3-0.6B", "revision": "v2"},
    }
    found = with_model_folders(asked)
    assert found == {
        "model": target,
        "speculative_config": {"model": draft, "revision": "v2"},
    }
    assert names_without_folder(asked) == []
    assert asked["model"] == "meta-llama/Llama-3.1-8B"


def test_another_revision_and_what_is_not_there_stay_names(cache):
    cache("Qwen/Qwen3-0.6B", "Qwen3-0.6B")
    for asked in (
        {"model": "Qwen/Qwen3-0.6B", "revision": "v9"},
        {"model": "Qwen/Qwen3-8B"},
        {"model": "Qwen/..--bad"},
    ):
        assert with_model_folders(asked) == asked
        assert names_without_folder(asked) == [asked["model"]]


def test_a_folder_stays_what_it_is(tmp_path, monkeypatch):
    (tmp_path / "one" / "two").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert with_model_folders({"model": "one/two"}) == {"model": "one/two"}
    assert names_without_folder({"model": "one/two"}) == []
    assert names_without_folder({"model": str(tmp_path)}) == []


def test_a_target_that_is_no_folder_is_left_to_vllm_and_a_lookup_is_no_draft(tmp_path):
    assert names_without_folder({"model": "s3://bucket/model"}) == ["s3://bucket/model"]
    lookup = {"method": "ngram", "model": "ngram"}
    asked = {"model": str(tmp_path), "speculative_config": lookup}
    assert names_without_folder(asked) == []
    asked = {"model": str(tmp_path), "speculative_config": {"model": "some/draft"}}
    assert names_without_folder(asked) == ["some/draft"]


def test_the_command_judges_what_the_cache_has(cache, capsys):
    cache("meta-llama/Llama-3.1-8B", "Llama-3.1-8B")
    machine = ["--devices", "1", "--memory", "64GiB", "--json"]
    served = ["--", "vllm", "serve", "meta-llama/Llama-3.1-8B", "--max-model-len", "4096"]
    assert cli.main(["check", *machine, *served]) == 0
    assert json.loads(capsys.readouterr().out)
    assert cli.main(["check", "--", "vllm", "serve", "meta-llama/Llama-9"]) == 1
    assert "in the cache of the Hugging Face hub" in capsys.readouterr().err
