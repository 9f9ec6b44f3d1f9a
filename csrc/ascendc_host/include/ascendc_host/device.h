// SPDX-License-Identifier: Apache-2.0
// Global memory: the regions that a launch may touch, and what its cores did to them.
#ifndef MKV_ASCENDC_HOST_DEVICE_H_
#define MKV_ASCENDC_HOST_DEVICE_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "records.h"
#include "shadow.h"

namespace ascendc_host {

// Global memory that the host gave to kernels: one tensor. [begin, end) are addresses.
struct Region {
  std::string name;
  uint64_t begin = 0;
  uint64_t end = 0;
  bool writable = false;
};

// splitmix64 (Steele, Lea, Flood 2014): small, and the same on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

// Ends a core whose kernel cannot go on. Thrown only after the problem was recorded.
struct Stop {};

// One per host thread, so that launches of several threads do not mix.
class Device {
 public:
  static Device& OfThisThread() {
    static thread_local Device device;
    return device;
  }

  void ClearRegions() {
    regions_.clear();
  }

  void AddRegion(const std::string& name, const void* address, uint64_t bytes, bool writable) {
    const auto begin = reinterpret_cast<uint64_t>(address);
    if (bytes > 0) {
      regions_.push_back(Region{name, begin, begin + bytes, writable});
    }
  }

  // The region that holds the address. Regions may overlap (views of one pool): one that begins at
  // the address wins, else the one that reaches furthest. nullptr when there is none.
  const Region* Find(uint64_t address) const {
    const Region* found = nullptr;
    for (const auto& region : regions_) {
      if (region.begin == address) {
        return &region;
      }
      if (region.begin < address && address < region.end &&
          (found == nullptr || region.end > found->end)) {
        found = &region;
      }
    }
    return found;
  }

  void SetSeed(uint64_t seed) {
    seed_ = seed;
  }

  // The core that wrote to a line by its scalar unit; -1 where none did. The line is written back
  // as a whole, at any time.
  int64_t ScalarWriter(uint64_t line) const {
    const auto found = scalar_writers_.find(line);
    return found == scalar_writers_.end() ? -1 : found->second;
  }
  void AddScalarWriter(uint64_t line, int64_t core) {
    scalar_writers_[line] = core;
  }
  bool has_scalar_writers() const {
    return !scalar_writers_.empty();
  }

  void Begin(const char* kernel, int64_t blocks) {
    shadow_.Clear();
    scalar_writers_.clear();
    report_ = Report();
    report_.kernel = kernel;
    report_.blocks = blocks;
    report_.seed = seed_;
  }

  // Records a problem once per kind and line, and counts the repeats.
  void Add(Problem problem) {
    for (auto& known : report_.problems) {
      if (known.kind == problem.kind && known.where.line == problem.where.line &&
          BaseName(known.where.file) == BaseName(problem.where.file) &&
          known.pipe == problem.pipe && known.buffer == problem.buffer) {
        ++known.times;
        return;
      }
    }
    report_.problems.push_back(std::move(problem));
  }

  // The order in which cores run: any is possible on the NPU.
  std::vector<int64_t> CoreOrder(int64_t blocks) const {
    std::vector<int64_t> order(static_cast<size_t>(blocks));
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = static_cast<int64_t>(i);
    }
    Random random(seed_);
    for (size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[random.Next() % i]);
    }
    return order;
  }

  uint64_t seed() const {
    return seed_;
  }
  Report& report() {
    return report_;
  }
  Shadow& shadow() {
    return shadow_;
  }

 private:
  std::vector<Region> regions_;
  Shadow shadow_;
  Report report_;
  uint64_t seed_ = 0;
  std::unordered_map<uint64_t, int64_t> scalar_writers_;
};

}  // namespace ascendc_host

#endif  // MKV_ASCENDC_HOST_DEVICE_H_
