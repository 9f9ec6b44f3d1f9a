// SPDX-License-Identifier: Apache-2.0
#include "blocks.h"

#include "aliasing.h"
#include "device_state.h"
#include "mem_pool.h"
#include "memory_ledger.h"
#include "pool_memory.h"
#include "recording.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace emulated_npu {

namespace {

struct Block {
  Block(char* start, size_t bytes, c10::DeviceIndex index, size_t charge, c10::Storage owner)
      : data(start), size(bytes), device(index), charged(charge), adopted(std::move(owner)) {}
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() {
    if (!adopted) {
      std::free(data);
    }
  }

  char* data;
  size_t size;
  c10::DeviceIndex device;
  size_t charged;
  c10::Storage adopted;    // owns the memory, when it is not ours
  int64_t born_in = 0;     // tape during which it was handed out; 0 for a segment of a pool
  int64_t owners = 1;      // storages, and the pool of a segment
  int64_t references = 0;  // those that know its address only
  bool in_mem_pool = false;
};

// A block that nobody knows any more. Its memory is freed when the lock is not held: memory that
// was adopted may need Python for that.
using DeadBlock = std::unique_ptr<Block>;

// Memory that graphs share. Its segments are blocks.
struct Pool {
  int64_t graphs = 0;
  std::map<std::pair<c10::DeviceIndex, bool>, PoolMemory> free;  // by device and is_small_request
  std::vector<Block*> segments;
  int64_t tape = 0;                           // that was recorded last
  std::map<const char*, size_t> tape_ranges;  // handed out while it was recorded
};

// A part of a segment that a storage owns. It goes back to its pool unless that is closed.
struct PoolRange {
  Range range;
  Block* segment;
  std::weak_ptr<Pool> pool;
};

struct Memory {
  std::mutex mutex;
  std::map<const char*, Block*> blocks;            // by address
  std::map<int64_t, std::shared_ptr<Pool>> pools;  // those that are open
};

Memory& memory() {
  // Never destroyed: storages may outlive static destruction.
  static auto* instance = new Memory();
  return *instance;
}

Block* find_block(const void* address) {
  const auto* wanted = static_cast<const char*>(address);
  auto after = memory().blocks.upper_bound(wanted);
  if (wanted == nullptr || after == memory().blocks.begin()) {
    return nullptr;
  }
  auto* block = std::prev(after)->second;
  return wanted < block->data + block->size ? block : nullptr;
}

bool is_freed(const Block& block) {
  return block.owners == 0;
}

void fill(Block* block, int byte) {
  // Adopted memory may have an owner on the host still.
  if (!block->adopted || block->adopted.use_count() == 1) {
    std::memset(block->data, byte, block->size);
  }
}

void poison(Block* block) {
  fill(block, kPoison);
}

// Takes one owner from a block; without owners it leaves the device. The lock is held.
DeadBlock disown(Block* block) {
  if (--block->owners > 0) {
    return nullptr;
  }
  MemoryLedger::discharge(block->device, block->charged);
  if (block->references > 0) {
    poison(block);
    return nullptr;
  }
  memory().blocks.erase(block->data);
  return DeadBlock(block);
}

// A new block is told to who plugged his allocator into the pool that it is of.
void put_into_mem_pool(Block* block) {
  if (allocates_in_mem_pool()) {
    block->in_mem_pool = true;
    tell_allocated(block->device, block->size, block->data);
  }
}

// Whether a block of the pool has one owner left.
bool is_last_of_mem_pool(const Block& block) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  return block.in_mem_pool && block.owners == 1;
}

void release_block(void* context) {
  auto* block = static_cast<Block*>(context);
  if (is_last_of_mem_pool(*block)) {
    tell_freed(block->device, block->size, block->data);
  }
  DeadBlock dead;
  std::lock_guard<std::mutex> lock(memory().mutex);
  dead = disown(block);
}

void release_range(void* context) {
  const std::unique_ptr<PoolRange> released(static_cast<PoolRange*>(context));
  DeadBlock dead;
  std::lock_guard<std::mutex> lock(memory().mutex);
  auto* segment = released->segment;
  if (const auto pool = released->pool.lock()) {
    const bool small = segment->size == segment_bytes(1);
    pool->free[{segment->device, small}].give_back(released->range);
  }
  dead = disown(segment);
}

void drop_reference(void* context) {
  auto* block = static_cast<Block*>(context);
  DeadBlock dead;
  std::lock_guard<std::mutex> lock(memory().mutex);
  if (--block->references == 0 && is_freed(*block)) {
    memory().blocks.erase(block->data);
    dead.reset(block);
  }
}

void no_block(void* /*context*/) {}

char* host_memory(size_t bytes, c10::DeviceIndex device) {
  void* data = nullptr;
  if (posix_memalign(&data, kAllocationGranularity, bytes) != 0) {
    MemoryLedger::discharge(device, bytes);
    TORCH_CHECK_WITH(
        OutOfMemoryError, false, "the host has no ", bytes,
        " bytes for emulated device npu:", static_cast<int>(device),
        ", although the device's own limit allows them. Emulate fewer devices, or give each ",
        "less memory (EMULATED_NPU_MEMORY).");
  }
  return static_cast<char*>(data);
}

Block* new_block(size_t bytes, c10::DeviceIndex device) {
  const size_t charged = MemoryLedger::charge(device, bytes);
  return new Block(host_memory(charged, device), charged, device, charged, {});
}

// Memory for what is allocated while `tape` is recorded.
c10::DataPtr allocate_in_pool(const Tape& tape, size_t bytes, c10::DeviceIndex device) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  const auto pool = memory().pools.at(tape.pool);
  auto& free = pool->free[{device, is_small_request(bytes)}];
  auto range = free.take(bytes);
  if (range.data == nullptr) {
    auto* segment = new_block(segment_bytes(bytes), device);
    memory().blocks.emplace(segment->data, segment);
    pool->segments.push_back(segment);
    free.add_segment({segment->data, segment->size});
    range = free.take(bytes);
  }
  if (pool->tape != tape.id) {
    pool->tape = tape.id;
    pool->tape_ranges.clear();
  }
  auto& handed_out = pool->tape_ranges[range.data];
  handed_out = std::max(handed_out, range.size);
  auto* segment = find_block(range.data);
  ++segment->owners;
  return {range.data, new PoolRange{range, segment, pool}, &release_range, npu(device)};
}

}  // namespace

c10::DataPtr allocate_block(size_t bytes, c10::DeviceIndex device) {
  if (bytes == 0) {
    return {nullptr, nullptr, &no_block, npu(device)};
  }
  const size_t size =
      (bytes + kAllocationGranularity - 1) / kAllocationGranularity * kAllocationGranularity;
  const auto tape = current_tape();
  c10::DataPtr data;
  if (tape != nullptr && tape->pool != 0) {
    data = allocate_in_pool(*tape, size, device);
  } else {
    auto* block = new_block(size, device);
    block->born_in = tape == nullptr ? 0 : tape->id;
    data = {block->data, block, &release_block, npu(device)};
    {
      std::lock_guard<std::mutex> lock(memory().mutex);
      memory().blocks.emplace(block->data, block);
    }
    put_into_mem_pool(block);
  }
  if (tape != nullptr) {
    // An index that is not computed at capture is a valid one then.
    std::memset(data.get(), 0, size);
  } else if (settings().fresh_fill != kLeaveAsItIs) {
    std::memset(data.get(), settings().fresh_fill, size);
  }
  return data;
}

c10::DataPtr adopt_block(const c10::Storage& cpu_storage, c10::DeviceIndex device) {
  auto* data = static_cast<char*>(cpu_storage.mutable_data());
  if (data == nullptr) {
    return {
        nullptr, new c10::Storage(cpu_storage),
        [](void* context) { delete static_cast<c10::Storage*>(context); }, npu(device)};
  }
  const size_t charged = MemoryLedger::charge(device, cpu_storage.nbytes());
  const auto tape = current_tape();
  Block* adopted = nullptr;
  {
    std::lock_guard<std::mutex> lock(memory().mutex);
    auto& block = memory().blocks[data];
    if (block != nullptr) {
      // The same memory adopted twice is charged once.
      MemoryLedger::discharge(device, charged);
      ++block->owners;
      return {data, block, &release_block, npu(device)};
    }
    block = new Block(data, cpu_storage.nbytes(), device, charged, cpu_storage);
    block->born_in = tape == nullptr ? 0 : tape->id;
    adopted = block;
  }
  put_into_mem_pool(adopted);
  return {data, adopted, &release_block, npu(device)};
}

at::Tensor weak_reference(const at::Tensor& tensor) {
  TORCH_CHECK(is_npu(tensor), "a weak reference needs an npu tensor, not one on ", tensor.device());
  const auto& storage = tensor.storage();
  std::lock_guard<std::mutex> lock(memory().mutex);
  auto* block = find_block(storage.data());
  if (block != nullptr) {
    ++block->references;
  }
  c10::DataPtr data(
      storage.mutable_data(), block, block != nullptr ? &drop_reference : &no_block,
      tensor.device());
  return tensor_over(
      c10::Storage(
          c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data), nullptr,
          /*resizable=*/false),
      tensor);
}

bool is_freed_block(const c10::Storage& storage) {
  const auto* block = storage.data_ptr().cast_context<Block>(&drop_reference);
  return block != nullptr && is_freed(*block);
}

bool is_block_of_tape(const void* address, int64_t tape) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  for (const auto& [id, pool] : memory().pools) {
    if (pool->tape == tape && pool->tape_ranges.count(static_cast<const char*>(address)) > 0) {
      return true;
    }
  }
  const auto* block = find_block(address);
  return block != nullptr && block->born_in == tape;
}

void poison_blocks_of(int64_t tape) {
  const int byte = settings().captured_fill;
  std::lock_guard<std::mutex> lock(memory().mutex);
  for (const auto& [address, block] : memory().blocks) {
    if (block->born_in == tape) {
      fill(block, byte);
    }
  }
  for (const auto& [id, pool] : memory().pools) {
    if (pool->tape == tape) {
      for (const auto& [data, size] : pool->tape_ranges) {
        std::memset(const_cast<char*>(data), byte, size);
      }
    }
  }
}

void unmap_block(int64_t address) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  auto* block = find_block(reinterpret_cast<const void*>(address));
  if (block != nullptr && !is_freed(*block) && block->charged > 0) {
    poison(block);
    MemoryLedger::discharge(block->device, block->charged);
    block->charged = 0;
  }
}

void map_block(int64_t address) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  auto* block = find_block(reinterpret_cast<const void*>(address));
  if (block != nullptr && !is_freed(*block) && block->charged == 0) {
    block->charged = MemoryLedger::charge(block->device, block->size);
  }
}

void open_pool(int64_t pool) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  auto& opened = memory().pools[pool];
  if (opened == nullptr) {
    opened = std::make_shared<Pool>();
  }
  ++opened->graphs;
}

void close_pool(int64_t pool) {
  std::vector<DeadBlock> dead;
  std::lock_guard<std::mutex> lock(memory().mutex);
  const auto closing = memory().pools.find(pool);
  if (--closing->second->graphs > 0) {
    return;
  }
  for (auto* segment : closing->second->segments) {
    dead.push_back(disown(segment));
  }
  memory().pools.erase(closing);
}

}  // namespace emulated_npu
