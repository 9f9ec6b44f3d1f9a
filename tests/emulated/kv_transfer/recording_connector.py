# SPDX-License-Identifier: Apache-2.0
"""Connectors of the tests: one that transfers nothing, one of vllm-ascend's that is watched."""

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)

# Before anything else of vllm-ascend: its modules import each other in a circle.
import vllm_ascend.ops  # noqa: F401  # isort: skip
from vllm_ascend.distributed.kv_transfer.kv_pool.recompute_cpu_offload import (
    recompute_cpu_offload_connector as recompute,
)

REGISTERED = []
"""What each call of ``register_kv_caches`` in this process was given."""


class RecordingConnector(KVConnectorBase_V1, SupportsHMA):
    """Takes part in every call that vLLM makes of a connector, and does nothing."""

    def register_kv_caches(self, kv_caches):
        REGISTERED.append(dict(kv_caches))

    def start_load_kv(self, forward_context, **kwargs):
        pass

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass

    def wait_for_save(self):
        pass

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return 0, False

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        pass

    def build_connector_meta(self, scheduler_output):
        return KVConnectorMetadata()

    def request_finished_all_groups(self, request, block_ids):
        return False, None


class CountingOffload(recompute.RecomputeCPUOffloadConnectorV1):
    """vllm-ascend's, which keeps the blocks of preempted requests; says how many come back."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        worker = self.worker_handler
        if worker is not None:
            worker._submit_transfer = self._noting(worker._submit_transfer)

    @staticmethod
    def _noting(submit):
        def noting(source, *arguments, is_store, **named):
            if not is_store:
                print(f"restored {len(source)} blocks", flush=True)
            return submit(source, *arguments, is_store=is_store, **named)

        return noting
