# SPDX-License-Identifier: Apache-2.0
"""What tests of KV cache layouts share."""

import pytest
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs

from tests.support import hosts
from tests.support.caches.kv_configs import FUNCTIONS, config

engine_core = hosts.module("kv_cache.engine_core")


@pytest.fixture
def installed(monkeypatch):
    """Our functions in vLLM's module for one test."""
    register_all_kvcache_specs(config())
    for name in FUNCTIONS:
        found = getattr(kv_cache_utils, name)
        monkeypatch.setattr(kv_cache_utils, name, getattr(found, "__wrapped__", found))
    engine_core.our_groups.apply()
