# SPDX-License-Identifier: Apache-2.0
"""What holds for tests without a device."""

import os

# vLLM 0.30 asks for its platform when it is imported; without a device there is none, and ours says
# so and ends the process.
os.environ.setdefault("VLLM_PLUGINS", "")
