// SPDX-License-Identifier: Apache-2.0
#include "memory_ledger.h"

#include "device_state.h"

#include <array>
#include <atomic>
#include <iomanip>
#include <mutex>
#include <sstream>

namespace emulated_npu {

namespace {

using c10::CachingDeviceAllocator::DeviceStats;

struct DeviceLedger {
  std::mutex mutex;
  DeviceStats stats;
};

DeviceLedger& ledger_of(c10::DeviceIndex device) {
  // Never destroyed: tensors may outlive static destruction and still give memory back.
  static auto* ledgers = new std::array<DeviceLedger, kMaxDevices>();
  TORCH_CHECK(
      device >= 0 && device < settings().device_count,
      "no emulated device npu:", static_cast<int>(device), "; there are ", settings().device_count);
  return (*ledgers)[device];
}

// Applies `change` to the aggregate of every statistic that moves with an allocation. There is no
// cache of freed blocks, so reserved and active memory equal allocated memory.
template <typename Change>
void for_each_byte_stat(DeviceStats& stats, Change change) {
  constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  change(stats.allocated_bytes[all]);
  change(stats.reserved_bytes[all]);
  change(stats.active_bytes[all]);
  change(stats.requested_bytes[all]);
}

template <typename Change>
void for_each_count_stat(DeviceStats& stats, Change change) {
  constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  change(stats.allocation[all]);
  change(stats.segment[all]);
  change(stats.active[all]);
}

int64_t allocated(const DeviceStats& stats) {
  return stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)]
      .current;
}

std::string readable(int64_t bytes) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(2) << static_cast<double>(bytes) / (1 << 20) << " MiB ("
       << bytes << " bytes)";
  return text.str();
}

[[noreturn]] void throw_out_of_memory(c10::DeviceIndex device, size_t asked, int64_t in_use) {
  const int64_t limit = settings().memory_bytes;
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "NPU out of memory: emulated device npu:", static_cast<int>(device),
      " was asked for ", readable(static_cast<int64_t>(asked)), "; ", readable(in_use),
      " of its limit of ", readable(limit), " are in use, ", readable(limit - in_use),
      " are free. Lower gpu_memory_utilization, kv_cache_memory_bytes, max_model_len, max_num_seqs "
      "or "
      "max_num_batched_tokens, or give each emulated device more memory "
      "(EMULATED_NPU_MEMORY, or "
      "the memory option of mkv-ascend emulate).");
}

std::atomic<bool> refuse_next{false};

}  // namespace

size_t MemoryLedger::charge(c10::DeviceIndex device, size_t bytes) {
  if (bytes == 0) {
    return 0;
  }
  const size_t rounded =
      (bytes + kAllocationGranularity - 1) / kAllocationGranularity * kAllocationGranularity;
  auto& ledger = ledger_of(device);
  int64_t in_use = 0;
  {
    std::lock_guard<std::mutex> lock(ledger.mutex);
    in_use = allocated(ledger.stats);
    // Compared this way round because in_use + rounded could overflow for absurd requests.
    if (!refuse_next.exchange(false) && rounded >= bytes &&
        rounded <= static_cast<size_t>(settings().memory_bytes - in_use)) {
      for_each_byte_stat(ledger.stats, [&](auto& stat) { stat.increase(rounded); });
      for_each_count_stat(ledger.stats, [](auto& stat) { stat.increase(1); });
      ++ledger.stats.num_device_alloc;
      return rounded;
    }
    ++ledger.stats.num_ooms;
  }
  throw_out_of_memory(device, bytes, in_use);
}

void MemoryLedger::discharge(c10::DeviceIndex device, size_t charged) noexcept {
  if (charged == 0) {
    return;
  }
  auto& ledger = ledger_of(device);
  std::lock_guard<std::mutex> lock(ledger.mutex);
  for_each_byte_stat(ledger.stats, [&](auto& stat) { stat.decrease(charged); });
  for_each_count_stat(ledger.stats, [](auto& stat) { stat.decrease(1); });
  ++ledger.stats.num_device_free;
}

DeviceStats MemoryLedger::stats(c10::DeviceIndex device) {
  auto& ledger = ledger_of(device);
  std::lock_guard<std::mutex> lock(ledger.mutex);
  return ledger.stats;
}

void MemoryLedger::reset_peak(c10::DeviceIndex device) {
  auto& ledger = ledger_of(device);
  std::lock_guard<std::mutex> lock(ledger.mutex);
  for_each_byte_stat(ledger.stats, [](auto& stat) { stat.reset_peak(); });
  for_each_count_stat(ledger.stats, [](auto& stat) { stat.reset_peak(); });
}

void MemoryLedger::reset_accumulated(c10::DeviceIndex device) {
  auto& ledger = ledger_of(device);
  std::lock_guard<std::mutex> lock(ledger.mutex);
  for_each_byte_stat(ledger.stats, [](auto& stat) { stat.reset_accumulated(); });
  for_each_count_stat(ledger.stats, [](auto& stat) { stat.reset_accumulated(); });
  ledger.stats.num_ooms = 0;
  ledger.stats.num_device_alloc = 0;
  ledger.stats.num_device_free = 0;
}

std::pair<size_t, size_t> MemoryLedger::free_and_total(c10::DeviceIndex device) {
  auto& ledger = ledger_of(device);
  std::lock_guard<std::mutex> lock(ledger.mutex);
  const int64_t limit = settings().memory_bytes;
  return {static_cast<size_t>(limit - allocated(ledger.stats)), static_cast<size_t>(limit)};
}

}  // namespace emulated_npu

void emulated_npu_refuse_next_allocation() {
  emulated_npu::refuse_next.store(true);
}
