# SPDX-License-Identifier: Apache-2.0
"""A KV connector that transfers nothing and notes which caches it was given."""

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
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
