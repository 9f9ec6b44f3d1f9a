# SPDX-License-Identifier: Apache-2.0
"""What a trainer has workers do: load the target again, or take new weights of either model."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Extension:
    """Methods of a worker (``worker_extension_cls``)."""

    model_runner: Any

    def load_again(self, path: str | None = None) -> None:
        """The target's weights, from the checkpoint at ``path``; by default from its own."""
        self.model_runner.reload_weights(weights_path=path)


def weights_in(path: str | Path) -> dict[str, Any]:
    """All weights of a checkpoint by name."""
    from safetensors.torch import load_file

    files = sorted(Path(path).glob("*.safetensors"))
    return {name: weight for file in files for name, weight in load_file(file).items()}


def send(weights: dict[str, Any], client: Any, *, packed: bool) -> None:
    """Send weights as a trainer on the same device does, by vllm-ascend's ``npu_ipc``."""
    from vllm.distributed.weight_transfer.base import WeightSource
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
    from vllm_ascend.distributed.weight_transfer.npu_ipc_engine import NPUIPCTrainerInitInfo

    class Trained(WeightSource):
        def metadata(self) -> Any:
            return [(name, weight.dtype, list(weight.shape)) for name, weight in weights.items()]

        def __iter__(self) -> Any:
            return ((name, weight.npu()) for name, weight in weights.items())

    # So small a buffer that a model takes several.
    wire = {"packed": packed, "packed_buffer_size_bytes": 1 << 21}
    WeightTransferTrainerFactory.trainer_init(
        NPUIPCTrainerInitInfo(rank=0, **wire), client=client, source=Trained()
    ).send_weights()


class Client:
    """Lets a trainer send to an engine of its own process, to the draft if asked."""

    def __init__(self, llm: Any, *, draft: bool) -> None:
        self._llm = llm
        self.start_weight_update = (
            llm.start_draft_weight_update if draft else llm.start_weight_update
        )
        self.finish_weight_update = llm.finish_weight_update

    def init_weight_transfer_engine(self, init_info: Any) -> None:
        self._llm.init_weight_transfer_engine({"init_info": init_info})

    def update_weights(self, update_info: Any) -> None:
        self._llm.update_weights({"update_info": update_info})


def send_to_draft(
    llm: Any, path: str, packed: bool, shared: str | None = None, only: str = ""
) -> str | None:
    """Send the draft its weights in ``path``.

    Args:
        llm: the engine.
        path: of the checkpoint.
        packed: whether many go at once.
        shared: the target's checkpoint, whose embeddings are sent too: first with an error, whose
            refusal is given back, and once the target was sent its weights as they are.
        only: how the names of the draft's weights begin.
    """
    client, refused = Client(llm, draft=True), None
    weights = {name: weight for name, weight in weights_in(path).items() if name.startswith(only)}
    if shared is not None:
        name = "embed_tokens.weight"
        embeddings = weights_in(shared)[f"model.{name}"]
        try:
            send({name: embeddings + 1, **weights}, client, packed=packed)
        except ValueError as error:
            refused = str(error)
            send(weights_in(shared), Client(llm, draft=False), packed=packed)
        weights[name] = embeddings
    send(weights, client, packed=packed)
    return refused
