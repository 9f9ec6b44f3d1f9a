# SPDX-License-Identifier: Apache-2.0
"""How layers attend on vllm-ascend 0.30.0, beyond what every host needs."""
