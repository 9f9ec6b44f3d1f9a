# SPDX-License-Identifier: Apache-2.0
"""For workers that are no children of an engine's process: its scheduler is told what they draft.

vLLM imports the module of a worker's extension in each worker.
"""

from __future__ import annotations

from tests.support.recorded_proposals import hand_over_drafts

hand_over_drafts()


class Extension:
    """Adds nothing to a worker."""
