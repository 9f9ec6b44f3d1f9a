# SPDX-License-Identifier: Apache-2.0
"""Which backend serves which layer: the catalog, the selection and its report."""
