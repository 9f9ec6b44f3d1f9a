# SPDX-License-Identifier: Apache-2.0
"""Content of the stand-in modules (torch_npu, acl) that the folder ``site`` offers to import."""
