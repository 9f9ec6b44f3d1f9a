# SPDX-License-Identifier: Apache-2.0
"""Building a draft changes nothing that the target uses; its builders see the draft."""

import copy
from importlib import import_module

import pytest
import torch

from tests.emulated.drafting import probes
from tests.support import engine, hosts, programs
from tests.support.marks import needs_float32
from tests.support.models.random_models import (
    write_experts,
    write_rotary_pair,
    write_starcoder,
)
from tests.support.pairs import (
    run_judged,
)
from tests.support.stock import each_runner


@pytest.fixture(scope="module")
def isolation():
    """What an engine with an MLA target and a dense draft holds after start-up."""
    from tests.support.pairs import scenario

    case = scenario("deepseek_v2_target", "llama_draft", prompts=[])
    return programs.answer_of(probes.isolation, {**case.engine_arguments(), "block_size": 256})


def test_the_targets_cache_settings_are_the_users(isolation):
    assert isolation["cache_config_changes"] == {}


def test_the_draft_has_cache_settings_of_its_own(isolation):
    assert isolation["draft_cache_config_is_own"]
    assert isolation["draft_block_size"] == isolation["target_block_size"]


def test_ascend_config_is_the_targets(isolation):
    assert isolation["ascend_config_is_the_targets"]
    assert isolation["ascend_config_model"] == isolation["target_model"]


def test_builders_of_each_model_see_its_own_model(isolation):
    assert isolation["builder_models"] == {
        "target": [isolation["target_model"]],
        "draft": [isolation["draft_model"]],
    }


def test_builders_of_a_head_see_the_head():
    """Of a head vLLM leaves the target's model in the draft's configuration."""
    from tests.support.pairs import scenario

    case = scenario("llama_target", "llama_eagle3", prompts=[], speculative={"method": "eagle3"})
    found = programs.answer_of(probes.isolation, case.engine_arguments())
    assert found["target_model"] != found["draft_model"]
    assert found["builder_models"] == {
        "target": [found["target_model"]],
        "draft": [found["draft_model"]],
    }


def test_the_draft_has_rotary_tables_of_its_own(isolation):
    assert isolation["draft_rotary_table_is_own"]


@pytest.fixture
def rotary_embedding():
    """vllm-ascend's module of rotary tables; its globals are put back afterwards."""
    from vllm_ascend.ops import rotary_embedding as module

    from mkv_ascend.adapters.common.attention.rope_tables import GLOBALS

    before = {name: getattr(module, name) for name in GLOBALS}
    yield module
    for name, value in before.items():
        setattr(module, name, value)


def rope_tables():
    from mkv_ascend.adapters.common.attention.rope_tables import RopeTables

    return RopeTables()


@pytest.mark.core
def test_rotary_tables_of_two_models_stay_apart(rotary_embedding):
    target, draft = torch.rand(4, 2), torch.rand(4, 2)
    rotary_embedding._record_cos_and_sin_cache(target, target)
    tables = rope_tables()
    with tables.active():
        rotary_embedding._record_cos_and_sin_cache(draft, draft)
        with tables.active():
            assert rotary_embedding._cos_cache is draft
    assert rotary_embedding._cos_cache is target
    with tables.active():
        cos, _ = rotary_embedding.get_cos_and_sin_mla(torch.tensor([1]))
        assert torch.equal(cos.flatten(), draft[1])
    assert rotary_embedding._cos_cache is target


@pytest.mark.core
def test_a_draft_has_rotary_modules_of_its_own():
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers import rotary_embedding as modules

    from mkv_ascend.adapters.common.attention.building import ModelBeingBuilt, building
    from mkv_ascend.layout.kind import Role

    def module():
        return modules.get_rope(64, 128, rope_parameters={"rope_theta": 10000.0})

    with set_current_vllm_config(VllmConfig()):
        of_target = module()
        with building(ModelBeingBuilt(Role.DRAFT)):
            of_draft = module()
            assert of_draft is module()
        assert of_draft is not of_target
        assert torch.equal(of_draft.cos_sin_cache, of_target.cos_sin_cache)
        assert module() is of_target


def test_drafts_that_the_host_proposes_with_have_rotary_modules_of_their_own(monkeypatch):
    from types import SimpleNamespace

    from vllm.model_executor.layers import rotary_embedding as modules

    proposers = hosts.module("drafting.proposers")
    seen = []
    kept = SimpleNamespace(load_model=lambda target: seen.append((target, modules._ROPE_DICT)))
    monkeypatch.setattr(proposers, "get_spec_decode_method", lambda *_: kept)
    monkeypatch.setattr(proposers.giving_up, "refuse_for_other_proposals", lambda *_: None)
    host = SimpleNamespace(keeps_proposer=lambda *_: True)
    proposers.create_proposer("mtp", None, None, None, host).load_model("the target")
    ((target, found),) = seen
    assert target == "the target"
    assert found is not modules._ROPE_DICT


class ProbeBuilder:
    """A metadata builder that says what it was given and which rotary table it sees."""

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        self.config = vllm_config

    def build(self):
        from types import SimpleNamespace

        from vllm_ascend.ops import rotary_embedding as module

        return SimpleNamespace(table=module._cos_cache)


class ProbeBackend:
    @staticmethod
    def get_builder_cls():
        return ProbeBuilder


def test_builders_of_a_draft_see_its_configuration_and_tables(rotary_embedding):
    from mkv_ascend.adapters.common.attention.backends import bound_to
    from mkv_ascend.adapters.common.attention.building import TARGET, ModelBeingBuilt
    from mkv_ascend.layout.kind import Role

    target, draft = torch.rand(4, 2), torch.rand(4, 2)
    rotary_embedding._record_cos_and_sin_cache(target, target)
    tables = rope_tables()
    with tables.active():
        rotary_embedding._record_cos_and_sin_cache(draft, draft)
    model = ModelBeingBuilt(Role.DRAFT, builder_config="the draft's", rope_tables=tables)

    bound = bound_to(ProbeBackend, model)
    builder = bound.get_builder_cls()(None, [], "the target's", "npu")
    assert builder.config == "the draft's"
    assert builder.build().table is draft
    assert rotary_embedding._cos_cache is target

    assert bound_to(ProbeBackend, TARGET) is ProbeBackend
    assert bound_to(ProbeBackend, model) is bound
    assert bound.__qualname__ != ProbeBackend.__qualname__


def test_metadata_of_a_draft_keeps_its_rows_when_the_next_is_built(rotary_embedding):
    """vllm-ascend's builder of MLA returns views of one buffer, which the next run overwrites."""
    from types import SimpleNamespace

    from mkv_ascend.adapters.common.attention.backends import bound_to
    from mkv_ascend.adapters.common.attention.building import ModelBeingBuilt
    from mkv_ascend.layout.kind import Role

    buffer = torch.zeros(2, 3)

    class Builder(ProbeBuilder):
        def build(self):
            buffer.add_(1)
            return SimpleNamespace(decode=SimpleNamespace(cos=buffer[0], sin=buffer[1]))

    backend = type("Backend", (), {"get_builder_cls": staticmethod(lambda: Builder)})
    model = ModelBeingBuilt(Role.DRAFT, rope_tables=rope_tables())
    builder = bound_to(backend, model).get_builder_cls()(None, [], None, "npu")
    built = [builder.build() for _ in range(2)]
    for number, metadata in enumerate(built, start=1):
        assert metadata.decode.cos.tolist() == [number] * 3
        assert metadata.decode.sin.tolist() == [number] * 3


def test_rows_gathered_anew_are_those_of_the_positions(rotary_embedding):
    """A graph writes them into the same memory in each replay."""
    tables = rope_tables()
    with tables.active():
        rotary_embedding._record_cos_and_sin_cache(torch.rand(6, 2), torch.rand(6, 2))
    kept = tables.rows(torch.tensor([1, 2, 3], dtype=torch.int32))
    positions = torch.tensor([5, 0, 4], dtype=torch.int32)
    expected = tables.rows(positions)
    assert not torch.equal(kept[0], expected[0])
    written = tables.rows(positions, out=kept)
    for rows, own, found in zip(kept, written, expected, strict=True):
        assert own is rows
        assert torch.equal(rows, found)
    assert not torch.equal(*expected)


def test_every_rotary_global_is_known():
    """A table that vllm-ascend adds must be kept apart as well."""
    from vllm_ascend.ops import rotary_embedding

    from mkv_ascend.adapters.common.attention.rope_tables import GLOBALS

    found = {
        name
        for name in vars(rotary_embedding)
        if name.startswith(("_cos", "_sin")) and not callable(getattr(rotary_embedding, name))
    }
    assert found == set(GLOBALS)


@pytest.mark.core
def test_separate_draft_config_undoes_what_making_the_draft_changed():
    from types import SimpleNamespace

    from transformers import PretrainedConfig

    separate_draft_config = hosts.module("drafting.draft_config").separate_draft_config

    # All layers of the target have a window, of the draft none has.
    own = {"block_size": 1024, "cache_dtype": "auto", "sliding_window": 128}
    dense = SimpleNamespace(get_sliding_window=lambda: None, hf_text_config=PretrainedConfig())
    ranks = {
        "prefill_context_parallel_size": 1,
        "decode_context_parallel_size": 2,
        "cp_kv_cache_interleave_size": 64,
    }
    target = SimpleNamespace(
        cache_config=SimpleNamespace(**own),
        speculative_config=SimpleNamespace(draft_model_config=dense),
        parallel_config=SimpleNamespace(pipeline_parallel_size=2, **ranks),
    )

    def make_draft():
        # What vllm-ascend does for a draft that is not hybrid, and for one with an indexer.
        target.cache_config.block_size = 128
        target.cache_config.cache_dtype = "bfloat16"
        made = copy.copy(target)
        # vLLM's own for a draft model, which is told of no ranks that share keys.
        alone = {**ranks, "decode_context_parallel_size": 1, "cp_kv_cache_interleave_size": 1}
        made.parallel_config = SimpleNamespace(pipeline_parallel_size=2, **alone)
        return made

    draft = separate_draft_config(target, make_draft)
    assert vars(target.cache_config) == own
    changed = {"cache_dtype": "bfloat16", "sliding_window": None}
    assert vars(draft.cache_config) == {**own, **changed}
    # The draft is whole on the last stage.
    stages = [config.parallel_config.pipeline_parallel_size for config in (target, draft)]
    assert stages == [2, 1]
    assert {name: getattr(draft.parallel_config, name) for name in ranks} == ranks


@pytest.mark.parametrize(
    ("module", "name", "reads_tables"),
    [
        ("attention_v1", "AscendAttentionMetadataBuilder", False),
        ("mla_v1", "AscendMLAMetadataBuilder", True),
        ("sfa_v1", "AscendSFAMetadataBuilder", True),
    ],
)
def test_builders_of_the_host_see_the_drafts(
    rotary_embedding, monkeypatch, module, name, reads_tables
):
    """The host's classes, which say what they see; those of plain attention read no table."""
    from mkv_ascend.adapters.common.attention.backends import bound_to
    from mkv_ascend.adapters.common.attention.building import ModelBeingBuilt
    from mkv_ascend.layout.kind import Role

    builder = getattr(import_module(f"vllm_ascend.attention.{module}"), name)
    monkeypatch.setattr(builder, "__init__", ProbeBuilder.__init__)
    monkeypatch.setattr(builder, "build", ProbeBuilder.build)
    rotary_embedding._cos_cache = "the target's"
    tables = rope_tables()
    with tables.active():
        rotary_embedding._cos_cache = "the draft's"
    model = ModelBeingBuilt(Role.DRAFT, builder_config="the draft's", rope_tables=tables)
    backend = type("Backend", (), {"get_builder_cls": staticmethod(lambda: builder)})
    made = bound_to(backend, model).get_builder_cls()
    assert made(None, [], "the target's", "npu").config == "the draft's"
    seen = made(None, [], "the target's", "npu").build().table
    assert seen == ("the draft's" if reads_tables else "the target's")


def test_each_rotary_global_is_the_targets_or_the_drafts(rotary_embedding):
    names = [name for name in vars(rotary_embedding) if name in rope_tables()._values]

    def set_all(value):
        for name in names:
            setattr(rotary_embedding, name, value)

    def values():
        return {getattr(rotary_embedding, name) for name in names}

    set_all("the target's")
    tables = rope_tables()
    with tables.active():
        assert values() == {None}
        set_all("the draft's")
    assert values() == {"the target's"}
    with tables.active():
        assert values() == {"the draft's"}


LENGTHS = (5, 17, 40, 33, 64, 9, 21, 50)


def run_and_judge(target, draft, runner):
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(256, (length,), generator=generator).tolist() for length in LENGTHS]
    case = engine.Scenario(
        str(target),
        str(draft),
        prompts=prompts,
        max_tokens=50,
        record_drafts=True,
        environment=runner,
    )
    result = run_judged(case)
    return case, result


@pytest.mark.host("0.23", cases=["v1"])
@needs_float32
@each_runner
def test_a_draft_that_rotates_otherwise_leaves_the_targets_rotation(tmp_path, runner):
    """ERNIE-4.5 sets is_neox_style of a module that vLLM would hand to both models."""
    case, result = run_and_judge(*write_rotary_pair(tmp_path), runner)
    assert result.num_drafts
    assert result.accepted_per_position == [result.num_drafts] * case.num_speculative_tokens


@pytest.mark.nightly("other cases of it stay", cases=["v2"])
@needs_float32
@each_runner
def test_a_target_that_rotates_otherwise_leaves_the_drafts_rotation(tmp_path, runner):
    _, ernie = write_rotary_pair(tmp_path)
    _, result = run_and_judge(ernie, write_starcoder(tmp_path / "starcoder"), runner)
    assert len(result.proposals) > 300


@pytest.mark.host("0.23", cases=["v1"])
@needs_float32
@each_runner
@hosts.only_on("vllm_ascend_0_30", "0.23.0 keeps such methods once; see test_drafting_reference.py")
def test_a_draft_with_as_many_experts_leaves_the_targets(tmp_path, runner):
    """vllm-ascend keeps methods of sending tokens to experts by the number of experts."""
    target, draft = (write_experts(tmp_path / str(number), number) for number in (2, 1))
    _, result = run_and_judge(target, draft, runner)
    assert len(result.proposals) > 300
