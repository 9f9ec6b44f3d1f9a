# SPDX-License-Identifier: Apache-2.0
"""A connector of the tests that moves the caches of prompts from one engine to another, by files.

As connectors between nodes do, it sends each block of each KV group once the prompt is read and
drafted behind, and lets a request wait while its blocks come. Its files lie in the folder
``shared_storage_path``. Latents of MLA that the engine that gets them keeps in 8 bits become so on
the way, as in vllm-ascend's MooncakeLayerwiseConnector.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)
from vllm.v1.kv_cache_interface import MambaSpec


@dataclass
class Transfer:
    """Caches of one prompt: where its file is, and its blocks in each KV group."""

    request: str
    file: str
    blocks: list[list[int]]


@dataclass
class Transfers(KVConnectorMetadata):
    """What a step sends, and what it gets."""

    sent: list[Transfer] = field(default_factory=list)
    got: list[Transfer] = field(default_factory=list)


class FileConnector(KVConnectorBase_V1, SupportsHMA):
    """Sends as producer, gets as consumer."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        self._folder = Path(transfer.get_from_extra_config("shared_storage_path", None))
        self._is_producer = transfer.is_kv_producer
        self._has_states = any(
            isinstance(group.kv_cache_spec, MambaSpec) for group in kv_cache_config.kv_cache_groups
        )
        self._config = kv_cache_config
        self._reads = {}
        self._waiting = {}
        self._finished = set()
        self._caches = {}

    # In the scheduler.

    def _read(self, prompt):
        """The tokens of a prompt that another engine has read: a state cannot go back by one."""
        return prompt[:-1] if self._has_states else prompt

    def _file_of(self, prompt):
        return self._folder / f"{hashlib.sha256(json.dumps(prompt).encode()).hexdigest()}.caches"

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        read = self._read(request.prompt_token_ids)
        if self._is_producer or not self._file_of(read).exists():
            return 0, False
        return len(read) - num_computed_tokens, True

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if num_external_tokens:
            file = self._file_of(self._read(request.prompt_token_ids))
            groups = [list(group) for group in blocks.get_block_ids()]
            self._waiting[request.request_id] = Transfer(request.request_id, str(file), groups)

    def build_connector_meta(self, scheduler_output):
        transfers = Transfers(got=[*self._waiting.values()])
        self._waiting.clear()
        if not self._is_producer:
            return transfers
        for new in scheduler_output.scheduled_new_reqs:
            groups = [list(group) for group in new.block_ids]
            self._reads[new.req_id] = (new.prompt_token_ids, groups, new.num_computed_tokens)
        cached = scheduler_output.scheduled_cached_reqs
        for index, name in enumerate(cached.req_ids):
            if name in self._reads:
                prompt, groups, _ = self._reads[name]
                for group, more in zip(groups, cached.new_block_ids[index] or (), strict=False):
                    group += more
                self._reads[name] = (prompt, groups, cached.num_computed_tokens[index])
        for name, tokens in scheduler_output.num_scheduled_tokens.items():
            if name not in self._reads:
                continue
            prompt, groups, computed = self._reads[name]
            if computed + tokens >= len(prompt):
                transfers.sent.append(Transfer(name, str(self._file_of(prompt)), groups))
                del self._reads[name]
        return transfers

    def request_finished_all_groups(self, request, block_ids):
        return False, None

    # In a worker.

    def register_kv_caches(self, kv_caches):
        groups = {
            name: index
            for index, group in enumerate(self._config.kv_cache_groups)
            for name in group.layer_names
        }
        for name, cache in kv_caches.items():
            parts = [part for part in cache if part is not None]
            self._caches[name] = (groups[name], parts)

    def start_load_kv(self, forward_context, **kwargs):
        for transfer in self._get_connector_metadata().got:
            saved = load_file(transfer.file)
            for key, blocks, ids in self._parts(transfer):
                # Block 0 stands for blocks that no token needs any more.
                held = ids > 0
                # The other engine had blocks for draft tokens, too.
                came = self._as_kept(key, saved[key][: len(ids)][held])
                blocks[ids[held].to(blocks.device)] = came.to(blocks.device)
            print(f"got the caches of {transfer.request}", flush=True)
            self._finished.add(transfer.request)

    def get_finished(self, finished_req_ids):
        finished, self._finished = self._finished, set()
        return None, finished

    def wait_for_save(self):
        for transfer in self._get_connector_metadata().sent:
            parts = self._parts(transfer)
            saved = {key: part[ids.to(part.device)].cpu() for key, part, ids in parts}
            save_file(saved, transfer.file)

    def _parts(self, transfer):
        """Of each part of each layer's cache: its key in a file, its blocks, and their ids."""
        for name, (group, parts) in self._caches.items():
            for index, part in enumerate(parts):
                blocks = part.view(self._config.num_blocks, -1)
                yield f"{name}.{index}", blocks, torch.tensor(transfer.blocks[group])

    def _as_kept(self, key, blocks):
        """Blocks of a layer's part as this engine keeps them."""
        name, _, index = key.rpartition(".")
        layer = self._vllm_config.compilation_config.static_forward_context[name]
        # Layers with recurrent states have no implementation of attention.
        if not getattr(getattr(layer, "impl", None), "fa_quant_layer", False):
            return blocks
        latents = index == "0"
        rows = blocks.unflatten(1, (self._vllm_config.cache_config.block_size, -1))
        if latents:
            rows = rows.float() * layer.quant_kscale.cpu()
            rows = rows.round().clamp(-128, 127).to(torch.int8)
        # The NZ form: 32 bytes of a row lie beside those of the next row.
        return rows.unflatten(2, (-1, 32 if latents else 16)).transpose(1, 2).flatten(1)

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass
