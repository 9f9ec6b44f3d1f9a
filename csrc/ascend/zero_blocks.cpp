// SPDX-License-Identifier: Apache-2.0
// zero_blocks: every block of every cache is cut into chunks, which go round the cores. All stores
// read one buffer of zeros, so nothing is waited for but its first filling.
#include "kernel_tools.h"
#include "launches.h"

namespace mkv::ascend {

constexpr int64_t kChunkBytes = 32 * 1024;  // a transfer of 16 KB and more has full bandwidth

// Columns of the page table.
constexpr int64_t kAddress = 0;
constexpr int64_t kStride = 1;
constexpr int64_t kBytes = 2;
constexpr int64_t kBlocks = 3;
constexpr int64_t kColumns = 4;

class ZeroBlocks {
 public:
  __aicore__ inline ZeroBlocks(GM_ADDR block_ids, bool wide, int64_t num_ids, GM_ADDR page_table)
      : block_ids_(block_ids, wide), num_ids_(num_ids), pages_(GlobalAt<int64_t>(page_table)) {
    pipe_.InitBuffer(buffer_, kChunkBytes);
    zeros_ = buffer_.Get<uint8_t>();
    AscendC::Duplicate(zeros_.ReinterpretCast<int32_t>(), 0, kChunkBytes / 4);
    Synchronise<AscendC::HardEvent::V_MTE3>();
  }

  __aicore__ inline void Run(int64_t num_caches) {
    // Chunks of all caches are counted through; this core's turn comes every GetBlockNum() of them.
    int64_t until_turn = AscendC::GetBlockIdx();
    for (int64_t cache = 0; cache < num_caches; ++cache) {
      const int64_t row = cache * kColumns;
      const int64_t bytes = pages_.GetValue(row + kBytes);
      const int64_t chunks = CeilDivide(bytes, kChunkBytes);
      const int64_t total = chunks * num_ids_;
      int64_t chunk = until_turn;
      for (; chunk < total; chunk += AscendC::GetBlockNum()) {
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
    const AscendC::DataCopyExtParams copy{1, static_cast<uint32_t>(bytes), 0, 0, 0};
    AscendC::DataCopyPad(GlobalAt<uint8_t>(address), zeros_, copy);
  }

  AscendC::TPipe pipe_;
  AscendC::TBuf<AscendC::TPosition::VECOUT> buffer_;
  AscendC::LocalTensor<uint8_t> zeros_;
  ScalarIndices block_ids_;
  int64_t num_ids_;
  AscendC::GlobalTensor<int64_t> pages_;
};

}  // namespace mkv::ascend

extern "C" __global__ __aicore__ void mkv_zero_blocks(
    GM_ADDR block_ids, const int32_t wide, const int64_t num_ids, GM_ADDR page_table,
    const int64_t num_caches) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  mkv::ascend::ZeroBlocks op(block_ids, wide != 0, num_ids, page_table);
  op.Run(num_caches);
}

void mkv_zero_blocks_launch(
    uint32_t cores, void* stream, void* block_ids, int32_t wide, int64_t num_ids, void* page_table,
    int64_t num_caches) {
  ASCENDC_LAUNCH(
      mkv_zero_blocks, cores, stream, static_cast<GM_ADDR>(block_ids), wide, num_ids,
      static_cast<GM_ADDR>(page_table), num_caches);
}
