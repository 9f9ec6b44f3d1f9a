# SPDX-License-Identifier: Apache-2.0
"""Any draft model for any target model on Ascend NPUs: a vLLM platform plugin over vllm-ascend.

Importing this package is light on purpose: neither torch nor vLLM is imported here, so that
``pip``, the command line and documentation tools work on any machine.
"""

__version__ = "0.23.0"
