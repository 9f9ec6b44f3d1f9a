# SPDX-License-Identifier: Apache-2.0
"""What is replaced before a model is built: heads, sizes of graphs, and the server's port."""

from __future__ import annotations

import errno
import hashlib
import socket
from typing import TYPE_CHECKING, Any, ClassVar

from transformers import AutoConfig, Gemma4TextConfig, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mkv_ascend.adapters.patching import patch
from mkv_ascend.adapters.refusal import StartUpRefused

if TYPE_CHECKING:
    from vllm.config import VllmConfig


# The configuration of Gemma 4's drafting head, which transformers 5.5.4 does not have.
#
# vLLM 0.23.0 has the head's model, and vllm-ascend 0.23.0 asks for that transformers. Fields are
# those of transformers 5.14's ``Gemma4AssistantConfig`` that vLLM reads.

MODEL_TYPE = "gemma4_assistant"


class Gemma4AssistantConfig(PretrainedConfig):
    """``text_config`` are the head's layers, ``backbone_hidden_size`` is the target's width."""

    model_type = MODEL_TYPE
    sub_configs: ClassVar[dict[str, Any]] = {"text_config": Gemma4TextConfig}

    def __init__(
        self,
        text_config: Gemma4TextConfig | dict[str, Any] | None = None,
        backbone_hidden_size: int = 1536,
        use_ordered_embeddings: bool = False,
        num_centroids: int = 2048,
        centroid_intermediate_top_k: int = 32,
        **others: Any,
    ) -> None:
        given: Any = text_config or {}
        if not isinstance(given, Gemma4TextConfig):
            given = Gemma4TextConfig(**given)
        self.text_config = given
        self.backbone_hidden_size = backbone_hidden_size
        self.use_ordered_embeddings = use_ordered_embeddings
        self.num_centroids = num_centroids
        self.centroid_intermediate_top_k = centroid_intermediate_top_k
        super().__init__(**{"tie_word_embeddings": True, **others})


def register() -> None:
    """Let transformers read such a config.json, unless it can."""
    if MODEL_TYPE not in CONFIG_MAPPING:
        AutoConfig.register(MODEL_TYPE, Gemma4AssistantConfig)


# Heads of multi-token prediction that vLLM knows and vllm-ascend 0.23.0 has forgotten.

FORGOTTEN = {"hy_v3": ("hy_v3_mtp", "HYV3MTPModel")}
"""Model type of a target -> type and architecture of its head."""

OF_ONE_LAYER = {"MiMoV2FlashForCausalLM": ("mimo_v2_mtp", "MiMoV2MTPModel")}
"""Class of a target -> type and architecture of its head, of which vLLM builds the first layer
alone, whatever the checkpoint has."""

ASSISTANTS = ("gemma4_assistant", "gemma4_unified_assistant")
"""Types of Gemma 4's heads."""


@patch(
    name="forgotten heads",
    target="vllm.config.speculative:SpeculativeConfig.hf_config_override",
    reads=("vllm_ascend.patch.platform.patch_speculative_config:hf_config_override",),
)
def remember_heads(original: Any, hf_config: Any) -> Any:
    """``hf_config_override``, and what vLLM's own makes of these families."""
    found = original(hf_config)
    if found.model_type in FORGOTTEN:
        found.model_type, architecture = FORGOTTEN[found.model_type]
        layers = getattr(found, "num_nextn_predict_layers", None)
        found.update({"n_predict": layers, "architectures": [architecture]})
    elif found.architectures[0] in OF_ONE_LAYER:
        found.model_type, architecture = OF_ONE_LAYER[found.architectures[0]]
        counts = {"num_hidden_layers": 0, "n_predict": 1, "num_nextn_predict_layers": 1}
        found.update({**counts, "architectures": [architecture]})
    elif found.model_type in ASSISTANTS:
        found.model_type = "gemma4_mtp"
        # The caches that are shared are the target's.
        found.text_config.num_kv_shared_layers = 0
        found.update({"n_predict": 1, "architectures": ["Gemma4MTPModel"]})
    return found


# A graph for as many requests as there may be at once.
#
# vllm-ascend (0.23.0, ``NPUPlatform.apply_config_platform_defaults``) asks for graphs of at most
# ``max_num_seqs * (1 + K)`` tokens. vLLM captures multiples of 8 up to there, of which it then
# takes those that round up to whole requests below the last one.


@patch(
    name="a graph for all requests",
    target="vllm.config.vllm:VllmConfig._set_cudagraph_sizes",
    reads=("vllm_ascend.platform:NPUPlatform._get_default_max_cudagraph_capture_size",),
)
def capture_the_largest(original: Any, config: VllmConfig) -> None:
    """vLLM's method, and once more with the largest size beside those that it chose."""
    compilation = config.compilation_config
    given, largest = compilation.cudagraph_capture_sizes, compilation.max_cudagraph_capture_size
    original(config)
    chosen = compilation.cudagraph_capture_sizes
    if given is None and largest is not None and chosen:
        most = min(largest, config.scheduler_config.max_num_batched_tokens)
        compilation.cudagraph_capture_sizes = sorted({*chosen, most})
        compilation.max_cudagraph_capture_size = None
        original(config)


# Traced graphs that vLLM keeps for the next start belong to one draft.


@patch(
    name="kept graphs of one draft",
    target="vllm.config.speculative:SpeculativeConfig.compute_hash",
    reads=(
        "vllm.compilation.caching:aot_compile_hash_factors",
        "vllm.config.model:ModelConfig.compute_hash",
    ),
)
def hash_the_draft(original: Any, config: Any) -> str:
    """``compute_hash``, and that of the draft's configuration."""
    found: str = original(config)
    draft = config.draft_model_config
    if draft is None:
        return found
    return hashlib.sha256(f"{found} {draft.compute_hash()}".encode()).hexdigest()


# A port on which another server listens is refused, as vLLM 0.30.0 does by itself.


@patch(
    name="one server a port",
    target="vllm.entrypoints.openai.api_server:create_server_socket",
)
def refuse_shared_port(original: Any, addr: tuple[str, int]) -> socket.socket:
    """The server's socket, which shares its port with none.

    Raises:
        StartUpRefused: another socket listens there.
    """
    made: socket.socket = original(addr)
    # Of two servers that start at the same time, the later one fails when it begins to listen.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)
    with socket.socket(made.family, socket.SOCK_STREAM) as tried:
        # So that sockets that listen count alone, not connections that have ended.
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(addr)
        except OSError as error:
            made.close()
            if error.errno != errno.EADDRINUSE:
                raise
            raise StartUpRefused(
                f"--port is {addr[1]}, on which another server listens. Possible: a port of its "
                "own for each server. Change: choose another --port, or end the other server."
            ) from None
    return made
