# SPDX-License-Identifier: Apache-2.0
"""Model runner V2 of vllm-ascend, without our plugin, gives Hugging Face's tokens here."""

from __future__ import annotations

from tests.support import hosts, stock

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 runs model runner V1 instead, with a warning")


def test_a_target_alone() -> None:
    stock.run("llama_target", v2=True)
