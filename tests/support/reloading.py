# SPDX-License-Identifier: Apache-2.0
"""What a trainer has workers do behind sleep mode's second level: load the target again."""

from __future__ import annotations

from typing import Any


class Extension:
    """Methods of a worker (``worker_extension_cls``)."""

    model_runner: Any

    def load_again(self) -> None:
        """The target's weights, from its checkpoint."""
        self.model_runner.reload_weights()
