# SPDX-License-Identifier: Apache-2.0
"""What a trainer has workers do: load the target again, from its checkpoint or from another."""

from __future__ import annotations

from typing import Any


class Extension:
    """Methods of a worker (``worker_extension_cls``)."""

    model_runner: Any

    def load_again(self, path: str | None = None) -> None:
        """The target's weights, from the checkpoint at ``path``; by default from its own."""
        self.model_runner.reload_weights(weights_path=path)
