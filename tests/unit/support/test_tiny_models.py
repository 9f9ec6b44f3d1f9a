# SPDX-License-Identifier: Apache-2.0
"""How checkpoints of tiny models are kept.

What the trained models themselves can do is tested in tests/emulated/support/test_tiny_models.py.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from tests.support.models import pictured_hybrid
from tests.support.tiny_models import ALL_NAMES, making, store
from tests.support.tiny_models.corpus import Corpus
from tests.support.tiny_models.recipes import FOR_THE_MATRIX, RECIPES, Recipe, find_recipe

MINUTE = Recipe(
    name="minute",
    model_type="llama",
    architecture={
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "head_dim": 16,
    },
    steps=24,
    text_tokens=256,
    decks=2,
)
ONES = torch.ones(2, dtype=torch.int64)
CORPUS = Corpus(
    (b"to be or not to be, that is the question\n" * 40,), (b"a sea of troubles\n" * 40,)
)


@pytest.fixture
def minute_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Recipe]:
    """Make ``MINUTE`` the one tiny model, ``CORPUS`` its text, and a folder what is kept."""
    monkeypatch.setitem(RECIPES, MINUTE.name, MINUTE)
    monkeypatch.setattr(making, "load_corpus", lambda: CORPUS)
    monkeypatch.setattr(store, "CHECKPOINTS", tmp_path / "kept")
    monkeypatch.setenv("MKV_ASCEND_CACHE", str(tmp_path / "cache"))
    store.digests.cache_clear()
    yield MINUTE
    store.digests.cache_clear()


def test_a_value_that_rounding_would_change_is_kept_as_it_is(minute_model: Recipe) -> None:
    values = {"half": torch.tensor([0.5, -3.0]), "third": torch.tensor([1 / 3]), "whole": ONES}
    store.write_packed(minute_model.name, values)
    found, _ = store.read_packed(minute_model.name)
    for name, value in values.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name


def test_other_bytes_than_the_digests_say_are_refused(minute_model: Recipe) -> None:
    store.write_packed(minute_model.name, {"whole": ONES})
    file = store.file_of(minute_model.name)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(store.WrongBytesError, match=r"minute\.\S+ is not the file of SHA"):
        making.model_directory(minute_model.name)


def test_every_checkpoint_is_there_with_its_digest_and_of_its_recipe() -> None:
    """A recipe that was changed must be trained anew: ``--train``."""
    kept = {*ALL_NAMES} - {*FOR_THE_MATRIX}
    files = {file.name.removesuffix(store.SUFFIX) for file in store.CHECKPOINTS.iterdir()}
    assert files - {store.DIGESTS} == store.digests().keys() == kept | {pictured_hybrid.HEAD}
    for name in kept:
        _, header = store.read_packed(name)
        recorded = json.loads(header[store.DESCRIPTION_FILE])["recipe"]
        assert recorded == json.loads(json.dumps(asdict(find_recipe(name)))), name
