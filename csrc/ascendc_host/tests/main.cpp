// SPDX-License-Identifier: Apache-2.0
// Runs every case, or those named, and prints a line of JSON for each: name, expected kind, report
// and the output. `--seed N` sets the seed.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

#include "cases.h"

namespace {

void Run(const cases::Case& one, uint64_t seed) {
  // As memory of a device lies: the counters count the sectors that are touched.
  alignas(512) static int32_t x[cases::kElements];
  alignas(512) static int32_t y[cases::kElements];
  for (int i = 0; i < cases::kElements; ++i) {
    x[i] = i;
    y[i] = -7;
  }
  auto& device = ascendc_host::Device::OfThisThread();
  device.ClearRegions();
  device.SetSeed(seed);
  device.AddRegion("x", x, sizeof(x), false);
  device.AddRegion("y", y, sizeof(y), true);
  const auto kernel = one.kernel;
  MKV_LAUNCH(
      kernel, one.cores, nullptr, reinterpret_cast<GM_ADDR>(x), reinterpret_cast<GM_ADDR>(y));
  std::string output;
  for (const int32_t value : y) {
    output += (output.empty() ? "" : ", ") + std::to_string(value);
  }
  std::printf(
      "{\"name\": \"%s\", \"kind\": \"%s\", \"report\": %s, \"y\": [%s]}\n", one.name, one.kind,
      ascendc_host::Json(device.report()).c_str(), output.c_str());
}

}  // namespace

int main(int count, char** arguments) {
  uint64_t seed = 0;
  std::set<std::string> wanted;
  for (int i = 1; i < count; ++i) {
    if (std::strcmp(arguments[i], "--seed") == 0 && i + 1 < count) {
      seed = std::strtoull(arguments[++i], nullptr, 10);
    } else {
      wanted.insert(arguments[i]);
    }
  }
  for (const auto& one : cases::All()) {
    if (wanted.empty() || wanted.count(one.name) != 0) {
      Run(one, seed);
    }
  }
  return 0;
}
