# SPDX-License-Identifier: Apache-2.0
"""What each layer keeps in its cache, how layers form KV groups, and a proven memory plan."""
