# SPDX-License-Identifier: Apache-2.0
"""The tiny models' parts: text, tokenizer, data, optimizer, training, store and command line.

What the trained models themselves can do is tested in tests/emulated/support/test_tiny_models.py.
"""

from __future__ import annotations

import fcntl
import json
import random
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.models import pictured_hybrid
from tests.support.tiny_models import (
    ALL_NAMES,
    InsensitiveModelError,
    making,
    optimizer,
    sensitivity,
    store,
    training,
)
from tests.support.tiny_models import __main__ as command
from tests.support.tiny_models.batches import DECK_LETTERS, batches, deck_line
from tests.support.tiny_models.corpus import Corpus, load_corpus, split_at_line
from tests.support.tiny_models.faultless import faultless_share
from tests.support.tiny_models.recipes import (
    DERIVED,
    FITTED_MODELS,
    FOR_THE_MATRIX,
    RECIPES,
    Recipe,
    find_recipe,
)
from tests.support.tiny_models.tokenizer import (
    BOS_TOKEN_ID,
    SPECIAL_TOKENS,
    VOCABULARY_SIZE,
    build_tokenizer,
)

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


def test_the_corpus_is_the_same_on_every_read() -> None:
    first = load_corpus()
    load_corpus.cache_clear()
    assert load_corpus() == first
    assert sum(map(len, first.training)) > 200_000
    assert sum(map(len, first.held_out)) > 20_000


@given(st.binary(max_size=300))
def test_a_split_loses_nothing_and_cuts_at_a_line(text: bytes) -> None:
    training, held_out = split_at_line(text)
    assert training + held_out == text
    assert held_out == b"" or training.endswith(b"\n")


SIZES_OF_MLA = {
    "deepseek_v2": [512, 64, 128, 128],
    "deepseek_v32": [512, 64, 128, 128],
    "glm4_moe_lite": [512, 64, 192, 256],
    "pangu_ultra_moe": [512, 64, 128, 128],
}
"""Type -> published sizes of a latent, of rotated and other parts of keys, and of values."""


def test_k_exaone_names_its_windows_as_both_of_its_versions_do() -> None:
    values = RECIPES["exaone_moe"].configuration()
    window = {"sliding_attention": values["sliding_window"], "full_attention": None}
    assert values["sliding_windows"] == [window[kind] for kind in values["layer_types"]]
    assert values["mtp_sliding_windows"] == [window[kind] for kind in values["mtp_layer_types"]]
    # One layer of that kind is what the MTP layer is built and judged as.
    assert values["mtp_layer_types"] == values["layer_types"][:1]


def test_every_recipe_is_legal_for_the_operators_and_for_two_ranks() -> None:
    for recipe in RECIPES.values():
        values = recipe.configuration()
        assert values["num_attention_heads"] % 2 == 0, recipe.name
        # vLLM gives each rank a copy of a head that stands alone.
        assert values["num_key_value_heads"] == 1 or values["num_key_value_heads"] % 2 == 0
        assert values["vocab_size"] == VOCABULARY_SIZE, recipe.name
        assert values["max_position_embeddings"] >= 512, recipe.name
        if recipe.model_type in SIZES_OF_MLA:
            names = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
            assert [values[name] for name in names] == SIZES_OF_MLA[recipe.model_type]
        else:
            # A family without a size of its own (Granite-4) has hidden size / heads.
            head = values.get("head_dim", values["hidden_size"] // values["num_attention_heads"])
            # Keys of MiMo-V2 have 192 elements, beside values of 128.
            unequal = (head, values.get("v_head_dim")) == (192, 128)
            assert head in (64, 128) or unequal, recipe.name


def test_an_unknown_name_lists_the_names() -> None:
    with pytest.raises(ValueError, match=r"no tiny model 'lama'.*llama_draft"):
        find_recipe("lama")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tokenizer as a user gets it: written to disk and loaded by transformers."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer(1024).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


@given(text=st.text(st.characters(exclude_categories=("Cs",)), max_size=60))
def test_any_text_survives_the_tokenizer_as_its_bytes(tokenizer: Any, text: str) -> None:
    tokens = tokenizer(text)["input_ids"]
    assert tokens == [BOS_TOKEN_ID, *text.encode()]
    assert tokenizer.decode(tokens, skip_special_tokens=True) == text
    assert tokenizer.decode(tokens[1:]) == text


def test_text_that_spells_a_special_token_stays_text(tokenizer: Any) -> None:
    text = "a <eos> and a <bos>"
    assert tokenizer(text)["input_ids"][1:] == list(text.encode())
    assert tokenizer.eos_token_id == VOCABULARY_SIZE - len(SPECIAL_TOKENS) + 1
    assert len(tokenizer) == VOCABULARY_SIZE


def test_a_deck_has_each_letter_once() -> None:
    generator = random.Random(3)
    lines = [deck_line(generator) for _ in range(20)]
    assert all(sorted(line[1:-2]) == sorted(DECK_LETTERS) for line in lines)
    assert len(set(lines)) == 20


def test_batches_repeat_and_hold_only_training_text() -> None:
    options = {"seed": 5, "steps": 8, "text_tokens": 512, "decks": 3}
    first = list(batches(CORPUS.training, **options))
    again = list(batches(CORPUS.training, **options))
    other = list(batches(CORPUS.training, **{**options, "seed": 6}))
    for ours, theirs in zip(first, again, strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])
    assert not torch.equal(first[0][0], other[0][0])
    for text, decks in first:
        assert text.numel() == 512
        assert decks.shape == (3, 30)
        for row in text.tolist():
            assert row[0] == BOS_TOKEN_ID
            assert bytes(row[1:]) in CORPUS.training[0]


@given(
    rows=st.integers(2, 24), columns=st.integers(2, 24), stack=st.integers(1, 3), seed=st.integers()
)
def test_orthogonalise_keeps_singular_vectors(
    rows: int, columns: int, stack: int, seed: int
) -> None:
    """Against the singular value decomposition, on matrices whose singular values are not tiny."""
    generator = torch.Generator().manual_seed(seed % 2**31)
    shape = (stack, rows, columns)
    left, _, right = torch.linalg.svd(torch.randn(shape, generator=generator), full_matrices=False)
    spectrum = torch.linspace(1.0, 0.3, min(rows, columns))
    result = optimizer.orthogonalise(left * spectrum @ right, steps=6)
    gains = left.mT @ result @ right.mT
    diagonal = torch.diagonal(gains, dim1=-2, dim2=-1)
    assert (diagonal > 0.5).all()
    assert (diagonal < 1.5).all()
    assert torch.allclose(gains, torch.diag_embed(diagonal), atol=1e-3)


def test_only_large_matrices_are_cut_into_blocks() -> None:
    assert optimizer.in_blocks(torch.zeros(512, 256)).shape == (4, 128, 256)
    for shape in ((512, 128), (128, 512), (200, 300), (4, 256, 256)):
        assert optimizer.in_blocks(torch.zeros(shape)).shape == shape


def test_training_repeats_and_learns() -> None:
    losses: list[float] = []
    with making.one_thread():
        first = training.train(MINUTE, CORPUS, lambda step, loss: losses.append(loss))
        again = training.train(MINUTE, CORPUS)
    assert len(losses) == MINUTE.steps
    assert losses[-1] < losses[0] - 0.5
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name


def test_a_removed_key_tells_nothing_of_its_token() -> None:
    """With the key hidden in all layers from all later queries, its token cannot matter."""
    model = training.build_model(MINUTE)
    context = [BOS_TOKEN_ID, *b"to be or not"]
    changed = [*context[:4], 120, *context[5:]]
    before = sensitivity.logits_without_keys(model, context)
    after = sensitivity.logits_without_keys(model, changed)
    assert torch.allclose(before[4], after[4], atol=1e-6)
    assert not torch.allclose(before[5], after[5], atol=1e-6)
    # Hidden from one layer, or from the last query alone, the token still speaks through others.
    for options in ({"layers": [0]}, {"layers": [1]}, {"last_query_only": True}):
        before = sensitivity.logits_without_keys(model, context, **options)
        after = sensitivity.logits_without_keys(model, changed, **options)
        assert not torch.allclose(before[4], after[4], atol=1e-6), options


def test_a_model_that_does_not_attend_has_no_sensitivity() -> None:
    model = training.build_model(MINUTE)
    for module in sensitivity.attention_modules(model):
        torch.nn.init.zeros_(module.o_proj.weight)
    result = sensitivity.measure_sensitivity(model, [CORPUS.held_out[0]])
    assert result.share == result.share_last_query == result.share_on_text == 0.0
    assert result.share_by_layer == [0.0, 0.0]
    assert result.removals > 500


def test_the_share_of_dealing_without_a_fault_is_that_of_dealers_in_plain_loops() -> None:
    """Each dealer prefers letters in an order of its own among those that it thinks left."""
    generator = random.Random(7)
    changed = removed = 0
    for context in sensitivity.probe_contexts() * 40:
        _, _, *dealt = context
        order = generator.sample(DECK_LETTERS, len(DECK_LETTERS))
        undisturbed = next(letter for letter in order if letter not in dealt)
        # Neither of the two marks before the letters is one of those.
        removed += 2
        for missing in dealt[:-1]:
            seen = [letter for letter in dealt if letter != missing]
            changed += next(letter for letter in order if letter not in seen) != undisturbed
            removed += 1
    assert changed / removed == pytest.approx(faultless_share(), abs=0.01)


def test_a_model_of_unknown_build_is_refused() -> None:
    with pytest.raises(ValueError, match="Linear has no module named self_attn"):
        sensitivity.attention_modules(torch.nn.Linear(1, 1))


def test_a_trained_checkpoint_is_kept_in_half_its_bytes_and_unpacked_with_all_its_values(
    minute_model: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.setattr(sensitivity, "REQUIRED_SHARE", -1.0)
    monkeypatch.setattr(sensitivity, "REQUIRED_LAYER_SHARE", -1.0)
    path = making.train_anew(minute_model.name)
    with making.one_thread():
        trained = training.train(minute_model, CORPUS)
    found = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    assert found.config.vocab_size == VOCABULARY_SIZE
    for name, value in trained.state_dict().items():
        assert torch.equal(found.state_dict()[name], value), name
    unpacked = (path / store.WEIGHTS_FILE).stat().st_size
    kept = store.file_of(minute_model.name)
    assert kept.stat().st_size < 0.6 * unpacked
    assert AutoTokenizer.from_pretrained(path)("a")["input_ids"] == [BOS_TOKEN_ID, ord("a")]
    description = store.read_description(path)
    assert description["recipe"]["steps"] == minute_model.steps
    assert 0.0 <= description["sensitivity"]["share"] <= 1.0
    monkeypatch.setattr(store, "unpack", None)
    assert making.model_directory(minute_model.name) == path


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


def test_checkpoints_are_small() -> None:
    size = sum(file.stat().st_size for file in store.CHECKPOINTS.iterdir())
    assert size < 40e6


def test_an_insensitive_model_is_refused_by_figures(
    minute_model: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensitivity, "REQUIRED_SHARE", 1.0)
    steps: list[int] = []
    with pytest.raises(InsensitiveModelError, match=r"minute: \[(\[[^]]+\](, )?){3}\].*over 1"):
        making.train_anew(minute_model.name, lambda step, _: steps.append(step))
    assert not store.CHECKPOINTS.exists()
    ends = [before for before, after in zip(steps, [*steps[1:], 1], strict=True) if after == 1]
    assert ends == [minute_model.steps * halves // 2 for halves in (2, 3, 4)]


def test_the_lock_keeps_a_second_process_out(tmp_path: Path) -> None:
    path = tmp_path / "model-abc"
    with store.locked(path):
        lock = next(tmp_path.glob(".*.lock"))
        # A second open file is what another process would have.
        with open(lock, "w") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    with open(lock, "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_command_lists_all_models(capsys: pytest.CaptureFixture[str]) -> None:
    path = making.model_directory("llama_draft")
    assert command.main(["--list"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert set(lines) == {*RECIPES, *DERIVED, *FITTED_MODELS}
    assert str(path) in lines["llama_draft"]


def test_the_command_trains_and_prints_the_folder(
    minute_model: Recipe, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sensitivity, "REQUIRED_SHARE", -1.0)
    monkeypatch.setattr(sensitivity, "REQUIRED_LAYER_SHARE", -1.0)
    assert command.main(["--train", "minute"]) == 0
    assert store.is_complete(Path(capsys.readouterr().out.strip()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "name a model, or give --all or --list"), (["lama"], "no tiny model 'lama'")],
)
def test_the_command_says_what_is_wrong(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        command.main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
