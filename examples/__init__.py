# SPDX-License-Identifier: Apache-2.0
"""Programs that use the plugin. They run in a clone, and no package has them."""
