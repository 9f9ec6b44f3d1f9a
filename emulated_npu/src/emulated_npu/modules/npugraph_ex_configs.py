# SPDX-License-Identifier: Apache-2.0
"""npugraph_ex.configs: the package of the options of npugraph_ex."""
