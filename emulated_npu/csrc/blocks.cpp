// SPDX-License-Identifier: Apache-2.0
#include "blocks.h"

#include "aliasing.h"
#include "device_state.h"
#include "memory_ledger.h"
#include "recording.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
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
  int64_t pool = 0;        // 0: of no pool
  int64_t born_in = 0;     // tape during which it was handed out
  int64_t owners = 1;      // storages
  int64_t references = 0;  // those that know its address only
  bool pooled = false;     // waits in its pool for the next owner
};

// A block that nobody knows any more. Its memory is freed when the lock is not held: memory that
// was adopted may need Python for that.
using DeadBlock = std::unique_ptr<Block>;

// A block serves a request of a pool when it is at most this much larger.
constexpr double kLargestWaste = 1.5;

struct Pool {
  int64_t graphs = 0;
  std::set<std::pair<size_t, Block*>> free;
};

struct Memory {
  std::mutex mutex;
  std::map<const char*, Block*> blocks;  // by address
  std::map<int64_t, Pool> pools;
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
  return block.owners == 0 && !block.pooled;
}

void poison(Block* block) {
  // Adopted memory may have an owner on the host still.
  if (!block->adopted || block->adopted.use_count() == 1) {
    std::memset(block->data, kPoison, block->size);
  }
}

// Takes a block without owner from the device. The lock is held.
DeadBlock retire(Block* block) {
  MemoryLedger::discharge(block->device, block->charged);
  block->pooled = false;
  if (block->references > 0) {
    poison(block);
    return nullptr;
  }
  memory().blocks.erase(block->data);
  return DeadBlock(block);
}

void release_block(void* context) {
  auto* block = static_cast<Block*>(context);
  DeadBlock dead;
  std::lock_guard<std::mutex> lock(memory().mutex);
  if (--block->owners > 0) {
    return;
  }
  const auto pool = memory().pools.find(block->pool);
  if (pool != memory().pools.end() && pool->second.graphs > 0) {
    block->pooled = true;
    pool->second.free.emplace(block->size, block);
  } else {
    dead = retire(block);
  }
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

Block* take_from_pool(int64_t pool, size_t bytes, int64_t tape) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  auto& free = memory().pools[pool].free;
  const auto found = free.lower_bound({bytes, nullptr});
  if (found == free.end() || static_cast<double>(found->first) > kLargestWaste * bytes) {
    return nullptr;
  }
  auto* block = found->second;
  free.erase(found);
  block->owners = 1;
  block->pooled = false;
  block->born_in = tape;
  return block;
}

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

}  // namespace

c10::DataPtr allocate_block(size_t bytes, c10::DeviceIndex device) {
  const c10::Device on = npu(device);
  if (bytes == 0) {
    return {nullptr, nullptr, &no_block, on};
  }
  const auto tape = current_tape();
  const int64_t id = tape == nullptr ? 0 : tape->id;
  const int64_t pool = tape == nullptr ? 0 : tape->pool;
  const size_t size =
      (bytes + kAllocationGranularity - 1) / kAllocationGranularity * kAllocationGranularity;
  Block* block = pool == 0 ? nullptr : take_from_pool(pool, size, id);
  if (block == nullptr) {
    const size_t charged = MemoryLedger::charge(device, bytes);
    block = new Block(host_memory(charged, device), charged, device, charged, {});
    block->pool = pool;
    block->born_in = id;
    std::lock_guard<std::mutex> lock(memory().mutex);
    memory().blocks.emplace(block->data, block);
  }
  if (id != 0) {
    // An index that is not computed at capture is a valid one then.
    std::memset(block->data, 0, block->size);
  }
  return {block->data, block, &release_block, on};
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
  return {data, block, &release_block, npu(device)};
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
  const auto* block = find_block(address);
  return block != nullptr && block->born_in == tape;
}

void poison_blocks_of(int64_t tape) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  for (const auto& entry : memory().blocks) {
    if (entry.second->born_in == tape) {
      poison(entry.second);
    }
  }
}

void open_pool(int64_t pool) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  ++memory().pools[pool].graphs;
}

void close_pool(int64_t pool) {
  std::vector<DeadBlock> dead;
  std::lock_guard<std::mutex> lock(memory().mutex);
  auto& closing = memory().pools[pool];
  if (--closing.graphs > 0) {
    return;
  }
  for (const auto& entry : closing.free) {
    dead.push_back(retire(entry.second));
  }
  closing.free.clear();
}

}  // namespace emulated_npu
