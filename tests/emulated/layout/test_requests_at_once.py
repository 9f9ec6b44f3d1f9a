# SPDX-License-Identifier: Apache-2.0
"""Requests at once from the same memory: stock vllm-ascend 0.30.0rc2 beside planned caches.

Stock's number comes from its own functions: its worker scales the memory, vLLM makes the
configuration of it and counts.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import vllm_ascend.ops  # noqa: F401  First of vllm_ascend, or its imports go in a circle.
from vllm.v1.core import kv_cache_utils
from vllm.v1.engine import core as engine_core
from vllm.v1.kv_cache_interface import MambaSpec
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner
from vllm_ascend.worker.worker import NPUWorker

from tests.support import hosts
from tests.support.caches.kv_configs import (
    MIB,
    config,
    configs,
    full,
    model,
    stock_configs,
    window,
)

pytestmark = [
    pytest.mark.usefixtures("installed"),
    hosts.only_on("vllm_ascend_0_30", "0.23.0 lets layers of all groups share bytes"),
    pytest.mark.core,
]

layer_facts = hosts.module("kv_cache.layer_facts")

MEMORY = 512 * MIB


def worker(specs, **options):
    """What the scaling of memory reads of a worker."""
    return SimpleNamespace(
        get_kv_cache_spec=lambda: dict(specs),
        vllm_config=config(**options),
        model_config=SimpleNamespace(hf_text_config=SimpleNamespace(model_type="any")),
        model_runner=SimpleNamespace(
            supports_standardized_shared_kv_backing=True, use_sparse=False, use_compress=False
        ),
    )


def concurrency(result):
    return kv_cache_utils.get_max_concurrency_for_kv_cache_config(config(), result)


@pytest.mark.parametrize(
    ("target", "groups"),
    [("ff", 1), ("fwfw", 2), ("fwwwww", 6)],
    ids=["one", "two", "six"],
)
def test_equal_groups_hold_as_many_times_the_requests(monkeypatch, target, groups):
    specs = model([full() if kind == "f" else window() for kind in target])
    offered = NPUWorker._scale_kv_cache_memory_for_multi_group(worker(specs), MEMORY)
    (stock,) = stock_configs(monkeypatch, dict(specs), offered)
    (ours,) = configs(specs, MEMORY)
    assert len(stock.kv_cache_groups) == len(ours.kv_cache_groups) == groups
    assert concurrency(ours) >= groups * concurrency(stock)
    counted = sum(tensor.size for tensor in ours.kv_cache_tensors)
    assert MEMORY - counted < MIB


def hybrid():
    """A full layer and three with states, padded to its page as vLLM 0.30.0 pads them."""
    attention = replace(full(2, 256), block_size=1152)
    state = MambaSpec(
        block_size=1024,
        shapes=((3, 8192), (32, 128, 128)),
        dtypes=(torch.bfloat16, torch.bfloat16),
        page_size_padded=attention.page_size_bytes,
    )
    specs = model([replace(state), replace(state), replace(state), attention])
    for name, spec in specs.items():
        facts = layer_facts.tied_facts(spec)
        kernel_block = None if isinstance(spec, MambaSpec) else 128
        layer_facts.tie(spec, replace(facts, kernel_block=kernel_block))
        assert facts.layer == name
    return specs


def test_a_hybrid_model_serves_as_many_requests_as_stock(monkeypatch):
    """Its groups share pages in stock, too."""
    offered = NPUWorker._scale_kv_cache_memory_for_multi_group(worker(hybrid()), MEMORY)
    assert offered == MEMORY
    (stock,) = stock_configs(monkeypatch, hybrid(), offered)
    (ours,) = configs(hybrid(), MEMORY)
    assert concurrency(ours) >= concurrency(stock)


def test_ranks_of_unequal_memory_are_planned_alike():
    """vLLM configures the rank with more memory again, for as many blocks as the other has."""
    (alone,) = configs(hybrid(), MEMORY)
    ranks = engine_core.get_kv_cache_configs(config(), [hybrid(), hybrid()], [MEMORY, 2 * MEMORY])
    assert ranks == [alone, alone]


def test_memory_is_not_scaled_where_caches_are_planned():
    (ours,) = hosts.module("kv_cache.engine_core").offer_all.functions.values()
    specs = model([full(), window(), full(), window()])

    def offered(**options):
        stock = NPUWorker._scale_kv_cache_memory_for_multi_group
        return ours(stock, worker(specs, **options), MEMORY)

    assert offered() == MEMORY
    connector = SimpleNamespace(kv_connector="any", kv_connector_extra_config={})
    assert offered(kv_transfer=connector) == MEMORY // 2


@pytest.mark.parametrize("connected", [False, True])
def test_specs_that_vllm_ascend_arranges_get_no_facts(monkeypatch, connected):
    """The engine core takes specs with facts for planned ones, and counts blocks by the plan."""
    module, specs, tied = hosts.module("runner"), model([full(), window()]), []
    planned = hosts.module("kv_cache.planned_specs")
    monkeypatch.setattr(planned, "get_layers_from_vllm_config", lambda *_: dict.fromkeys(specs))
    monkeypatch.setattr(planned, "tie_facts", lambda found, *_: tied.extend(found))
    monkeypatch.setattr(NPUModelRunner, "get_kv_cache_spec", lambda self: dict(specs))
    connector = SimpleNamespace(kv_connector="any", kv_connector_extra_config={})
    options = config(**({"kv_transfer": connector} if connected else {}))
    options.speculative_config = None
    options.model_config.hf_text_config = SimpleNamespace()
    options.model_config.dtype = torch.bfloat16
    runner = module.MkvModelRunner.__new__(module.MkvModelRunner)
    vars(runner).update(
        vllm_config=options,
        model_config=options.model_config,
        draft_layers=frozenset,
    )
    assert runner.get_kv_cache_spec() == specs
    assert tied == ([] if connected else list(specs))
