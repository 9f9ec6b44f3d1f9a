// SPDX-License-Identifier: Apache-2.0
// Each op for CPU tensors beside the loop that anybody would write for it, on the same memory.
// A function returns the time of the op's kernel over that of the loop, the fastest of interleaved
// repeats. Results are compared; -1 says that they differ.
#include "kernels.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <vector>

using namespace mkv::ops;

namespace {

constexpr int64_t kColumns = 80;
constexpr int64_t kBlockSize = 128;
constexpr int64_t kMaxModelLen = kColumns * kBlockSize;

constexpr double kLeastSeconds = 20e-6;

// A call each time, as of a kernel: what a loop needs must not be kept from one run to the next.
template <typename Run>
[[gnu::noinline]] void called(const Run& run) {
  run();
  asm volatile("" ::: "memory");
}

template <typename Run>
double seconds(const Run& run, int64_t times) {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t time = 0; time < times; ++time) {
    called(run);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

template <typename First, typename Second>
double ratio(int repeats, const First& first, const Second& second) {
  // Short runs are timed several at once: reading the clock takes as long as a batch of one.
  int64_t times = 1;
  while (seconds(second, times) < kLeastSeconds && times < 4096) {
    times *= 2;
  }
  // The fastest run of each: whatever else the machine does makes a run slower, never faster.
  double kernel = seconds(first, times);
  double loop = seconds(second, times);
  for (int repeat = 1; repeat < repeats; ++repeat) {
    kernel = std::min(kernel, seconds(first, times));
    loop = std::min(loop, seconds(second, times));
  }
  return kernel / loop;
}

struct Tables {
  std::vector<std::vector<int32_t>> ids;
  std::vector<Group> groups;

  Tables(int64_t count, int64_t rows) {
    for (int64_t group = 0; group < count; ++group) {
      ids.emplace_back(static_cast<size_t>(rows * kColumns));
      std::iota(ids.back().begin(), ids.back().end(), static_cast<int32_t>(group));
      groups.push_back(
          {ids.back().data(), rows, kColumns, kColumns, kBlockSize, shift_of(kBlockSize)});
    }
  }
};

}  // namespace

extern "C" {

double loop_draft_plan(int64_t rows, int64_t steps, int64_t groups, int repeats) {
  const Tables tables(groups, rows);
  std::vector<int32_t> first(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row) {
    first[static_cast<size_t>(row)] = static_cast<int32_t>(row * 97 % (kMaxModelLen - 2));
  }
  const auto cells = static_cast<size_t>(rows * steps);
  std::vector<int32_t> positions(cells), lengths(cells), slots(cells * tables.groups.size());
  std::vector<int32_t> loop_positions(cells), loop_lengths(cells), loop_slots(slots.size());
  const DraftPlan plan{
      rows,
      steps,
      rows,
      kMaxModelLen,
      Indices(first.data(), false),
      tables.groups,
      positions.data(),
      false,
      rows,
      lengths.data(),
      rows,
      slots.data(),
      groups * rows,
      rows};
  const auto loop = [&] {
    for (int64_t step = 0; step < steps; ++step) {
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t moved = first[static_cast<size_t>(row)] + step + 1;
        const bool fits = moved < kMaxModelLen;
        loop_positions[static_cast<size_t>(step * rows + row)] = fits ? moved : 0;
        loop_lengths[static_cast<size_t>(step * rows + row)] = fits ? moved + 1 : 1;
        for (int64_t group = 0; group < groups; ++group) {
          const auto& ids = tables.ids[static_cast<size_t>(group)];
          const int64_t block_size = tables.groups[static_cast<size_t>(group)].block_size;
          const int64_t column = moved / block_size;
          loop_slots[static_cast<size_t>((step * groups + group) * rows + row)] =
              fits ? static_cast<int32_t>(
                         ids[static_cast<size_t>(row * kColumns + column)] * block_size +
                         moved % block_size)
                   : -1;
        }
      }
    }
  };
  const double result = ratio(repeats, [&] { draft_plan(plan); }, loop);
  const bool same = positions == loop_positions && lengths == loop_lengths && slots == loop_slots;
  return same ? result : -1;
}

double loop_target_slots(int64_t rows, int64_t length, int64_t groups, int repeats) {
  const Tables tables(groups, rows);
  const int64_t tokens = rows * length;
  std::vector<int64_t> positions(static_cast<size_t>(tokens));
  std::vector<int32_t> starts(static_cast<size_t>(rows + 1));
  for (int64_t token = 0; token < tokens; ++token) {
    positions[static_cast<size_t>(token)] =
        (token / length * 97) % (kMaxModelLen - length) + token % length;
  }
  for (int64_t row = 0; row <= rows; ++row) {
    starts[static_cast<size_t>(row)] = static_cast<int32_t>(row * length);
  }
  std::vector<std::vector<int32_t>> slots, loop_slots;
  TargetSlots inputs{tokens, rows, Indices(positions.data(), true), starts.data(), tables.groups,
                     {},     {}};
  slots.resize(static_cast<size_t>(groups), std::vector<int32_t>(static_cast<size_t>(tokens)));
  loop_slots = slots;
  for (auto& one : slots) {
    inputs.slots.push_back(one.data());
    inputs.sizes.push_back(tokens);
  }
  const auto loop = [&] {
    for (int64_t group = 0; group < groups; ++group) {
      const auto& ids = tables.ids[static_cast<size_t>(group)];
      const int64_t block_size = tables.groups[static_cast<size_t>(group)].block_size;
      auto& out = loop_slots[static_cast<size_t>(group)];
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t token = starts[static_cast<size_t>(row)];
             token < starts[static_cast<size_t>(row + 1)]; ++token) {
          const int64_t position = positions[static_cast<size_t>(token)];
          const int64_t id = ids[static_cast<size_t>(row * kColumns + position / block_size)];
          out[static_cast<size_t>(token)] =
              static_cast<int32_t>(id * block_size + position % block_size);
        }
      }
    }
  };
  const double result = ratio(repeats, [&] { target_slots(inputs); }, loop);
  return slots == loop_slots ? result : -1;
}

// The first pass of a draft model: no shift, one more row per request, `rejected` of each rejected.
double loop_expand_inputs(
    int64_t rows, int64_t length, int64_t rejected, int64_t groups, int repeats) {
  const Tables tables(groups, rows);
  const int64_t tokens = rows * length;
  const int64_t out = tokens + rows;
  std::vector<int32_t> ids(static_cast<size_t>(tokens)), positions(ids),
      next(static_cast<size_t>(rows), 7), starts(static_cast<size_t>(rows + 1)),
      lost(static_cast<size_t>(rows), static_cast<int32_t>(rejected));
  for (int64_t token = 0; token < tokens; ++token) {
    ids[static_cast<size_t>(token)] = static_cast<int32_t>(token);
    positions[static_cast<size_t>(token)] =
        static_cast<int32_t>((token / length * 97) % (kMaxModelLen - length - 1) + token % length);
  }
  for (int64_t row = 0; row <= rows; ++row) {
    starts[static_cast<size_t>(row)] = static_cast<int32_t>(row * length);
  }
  struct Out {
    std::vector<int32_t> ids, positions, samples, starts, lengths, next, slots;
    std::vector<int8_t> rejected, masked;
    Out(int64_t out, int64_t rows, int64_t groups)
        : ids(static_cast<size_t>(out)),
          positions(ids),
          samples(static_cast<size_t>(rows)),
          starts(static_cast<size_t>(rows + 1)),
          lengths(samples),
          next(samples),
          slots(static_cast<size_t>(out * groups)),
          rejected(static_cast<size_t>(out)),
          masked(rejected) {}
    bool operator==(const Out& other) const = default;
  };
  Out got(out, rows, groups), wanted(out, rows, groups);
  const ExpandInputs inputs{
      rows,
      tokens,
      out,
      rows,
      1,
      false,
      kMaxModelLen,
      0,
      0,
      Indices(ids.data(), false),
      Indices(positions.data(), false),
      Indices(next.data(), false),
      starts.data(),
      Indices(lost.data(), false),
      {},
      {},
      tables.groups,
      got.ids.data(),
      OutIndices(got.positions.data(), false),
      got.rejected.data(),
      got.masked.data(),
      got.samples.data(),
      nullptr,
      got.starts.data(),
      got.lengths.data(),
      OutIndices(got.next.data(), false),
      got.slots.data(),
      out};
  const auto loop = [&] {
    size_t at = 0;
    for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
      const int64_t start = starts[row];
      const int64_t kept = starts[row + 1] - start - lost[row];
      const int64_t first = positions[static_cast<size_t>(start)];
      wanted.samples[row] = static_cast<int32_t>(at + static_cast<size_t>(kept));
      wanted.next[row] = static_cast<int32_t>(first + kept);
      wanted.lengths[row] = static_cast<int32_t>(first + kept + 1 + lost[row]);
      for (int64_t place = 0; place < kept + 1 + lost[row]; ++place, ++at) {
        const bool padding = place > kept;
        const int64_t position = first + place;
        wanted.ids[at] = padding         ? 0
                         : place == kept ? next[row]
                                         : ids[static_cast<size_t>(start + place)];
        wanted.positions[at] = padding ? 0 : static_cast<int32_t>(position);
        wanted.rejected[at] = padding ? 1 : 0;
        wanted.masked[at] = 0;
        for (size_t group = 0; group < tables.groups.size(); ++group) {
          const int64_t block_size = tables.groups[group].block_size;
          const auto column = static_cast<size_t>(position / block_size);
          wanted.slots[group * static_cast<size_t>(out) + at] =
              padding ? -1
                      : static_cast<int32_t>(
                            tables.ids[group][row * kColumns + column] * block_size +
                            position % block_size);
        }
      }
      wanted.starts[row + 1] = static_cast<int32_t>(at);
    }
  };
  const double result = ratio(repeats, [&] { expand_inputs(inputs); }, loop);
  return got == wanted ? result : -1;
}

double loop_zero_blocks(int64_t ids, int64_t caches, int64_t bytes, int repeats) {
  const int64_t blocks = 2 * ids;
  // One memory for both: how fast it is depends on its pages more than on who writes it.
  std::vector<char> memory(static_cast<size_t>(caches * blocks * bytes), 1);
  std::vector<int64_t> chosen(static_cast<size_t>(ids));
  for (int64_t place = 0; place < ids; ++place) {
    chosen[static_cast<size_t>(place)] = 2 * place;
  }
  std::vector<Pages> pages;
  for (int64_t cache = 0; cache < caches; ++cache) {
    pages.push_back({memory.data() + cache * blocks * bytes, bytes, bytes, blocks});
  }
  const auto loop = [&] {
    for (int64_t cache = 0; cache < caches; ++cache) {
      for (const int64_t id : chosen) {
        std::memset(memory.data() + (cache * blocks + id) * bytes, 0, static_cast<size_t>(bytes));
      }
    }
  };
  loop();
  const std::vector<char> wanted = memory;
  std::fill(memory.begin(), memory.end(), char{1});
  const auto kernel = [&] { zero_blocks(pages, Indices(chosen.data(), true), ids); };
  kernel();
  return memory == wanted ? ratio(repeats, kernel, loop) : -1;
}

}  // extern "C"
