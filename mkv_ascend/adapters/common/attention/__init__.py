# SPDX-License-Identifier: Apache-2.0
"""A backend for each attention layer, and what metadata builders of a draft need."""
