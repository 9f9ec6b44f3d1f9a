// SPDX-License-Identifier: Apache-2.0
// Launches of the AscendC kernels, as host code sees them. `cores` counts vector cores. Pointers
// are device addresses; integers are frozen by graph capture, so what changes between replays is
// read from memory. Strides are in elements unless a name says bytes.
#pragma once

#include <cstdint>

extern "C" {

void mkv_zero_blocks_launch(
    uint32_t cores, void* stream, void* block_ids, int32_t wide, int64_t num_ids, void* page_table,
    int64_t num_caches);

// One component of paged_scatter, in bytes but for the counts.
struct MkvScatterComponent {
  void* rows;
  void* cache;
  int64_t row_stride;
  int64_t block_stride;
  int64_t token_stride;
  int64_t bytes;
  int64_t block_size;
  int64_t num_blocks;
};

// `components` points at four on the host; those from num_components on are not looked at.
void mkv_paged_scatter_launch(
    uint32_t cores, void* stream, void* slots, int64_t num_tokens, int32_t num_components,
    const MkvScatterComponent* components);

}  // extern "C"
