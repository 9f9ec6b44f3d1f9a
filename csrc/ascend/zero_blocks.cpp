// SPDX-License-Identifier: Apache-2.0
// zero_blocks: every block of every cache is cut into chunks, which go round the cores. All stores
// read one buffer of zeros, so nothing is waited for but its first filling.
#include "common.h"
#include "launchers.h"
#include "ascendc_launch.h"

namespace mkv {

constexpr int64_t kChunkBytes = 32 * 1024;  // a transfer of 16 KB and more has full bandwidth

// Columns of the page table.
constexpr int64_t kAddress = 0;
constexpr int64_t kStride = 1;
constexpr int64_t kBytes = 2;
constexpr int64_t kBlocks = 3;
constexpr int64_t kColumns = 4;

class ZeroBlocks {
 public:
  __aicore__ inline ZeroBlocks(
      TPipe* pipe, GM_ADDR block_ids, bool wide, int64_t num_ids, GM_ADDR page_table)
      : block_ids_(block_ids, wide), num_ids_(num_ids), pages_(GlobalAt<int64_t>(page_table)) {
    pipe->InitBuffer(buffer_, kChunkBytes);
    zeros_ = buffer_.Get<uint8_t>();
    Duplicate(zeros_.ReinterpretCast<int32_t>(), 0, kChunkBytes / 4);
    Sync<HardEvent::V_MTE3>();
  }

  __aicore__ inline void Run(int64_t num_caches) {
    // Chunks of all caches are counted through; this core's turn comes every GetBlockNum() of them.
    int64_t until_turn = GetBlockIdx();
    for (int64_t cache = 0; cache < num_caches; ++cache) {
      const int64_t row = cache * kColumns;
      const int64_t bytes = pages_.GetValue(row + kBytes);
      const int64_t chunks = CeilDivide(bytes, kChunkBytes);
      const int64_t total = chunks * num_ids_;
      int64_t chunk = until_turn;
      for (; chunk < total; chunk += GetBlockNum()) {
        const int64_t block = block_ids_.Get(chunk / chunks);
        const int64_t begin = chunk % chunks * kChunkBytes;
        if (block >= 0 && block < pages_.GetValue(row + kBlocks)) {
          const int64_t at =
              pages_.GetValue(row + kAddress) + block * pages_.GetValue(row + kStride) + begin;
          Zero(at, Least(kChunkBytes, bytes - begin));
        }
      }
      until_turn = chunk - total;
    }
  }

 private:
  __aicore__ inline void Zero(int64_t address, int64_t bytes) {
    const DataCopyExtParams copy{1, static_cast<uint32_t>(bytes), 0, 0, 0};
    DataCopyPad(GlobalAt<uint8_t>(address), zeros_, copy);
  }

  TBuf<TPosition::VECOUT> buffer_;
  LocalTensor<uint8_t> zeros_;
  ScalarIndices block_ids_;
  int64_t num_ids_;
  GlobalTensor<int64_t> pages_;
};

}  // namespace mkv

extern "C" __global__ __aicore__ void mkv_zero_blocks_kernel(
    GM_ADDR block_ids, const int32_t wide, const int64_t num_ids, GM_ADDR page_table,
    const int64_t num_caches) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  mkv::EmptyDataCache();
  AscendC::TPipe pipe;
  mkv::ZeroBlocks op(&pipe, block_ids, wide != 0, num_ids, page_table);
  op.Run(num_caches);
}

extern "C" void mkv_ascend_zero_blocks(
    uint32_t cores, void* stream, uint8_t* block_ids, int32_t wide, int64_t num_ids,
    uint8_t* page_table, int64_t num_caches) {
  MKV_LAUNCH(
      mkv_zero_blocks_kernel, cores, stream, block_ids, wide, num_ids, page_table, num_caches);
}
