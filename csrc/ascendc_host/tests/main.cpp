// SPDX-License-Identifier: Apache-2.0
// Runs every case, or those named, and prints a line of JSON for each: name, expected kind, report
// and the output. `--seed N` sets the seed. With `--again` a case is launched a second time, on an
// input that changed in between; with `--keep` data caches outlive the first launch.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

#include "cases.h"

namespace {

struct Options {
  uint64_t seed = 0;
  bool again = false;
  bool keep = false;
};

void Run(const cases::Case& one, const Options& options) {
  // As memory of a device lies: the counters count the sectors that are touched.
  alignas(512) static int32_t x[cases::kElements];
  alignas(512) static int32_t y[cases::kElements];
  for (int i = 0; i < cases::kElements; ++i) {
    x[i] = i;
    y[i] = -7;
  }
  auto& device = ascendc_host::Device::OfThisThread();
  device.ClearRegions();
  device.SetSeed(options.seed);
  device.KeepCaches(options.keep);
  device.AddRegion("x", x, sizeof(x), false);
  device.AddRegion("y", y, sizeof(y), true);
  const auto kernel = one.kernel;
  for (int launch = 0; launch < (options.again ? 2 : 1); ++launch) {
    for (int32_t& value : x) {
      value += launch;
    }
    MKV_LAUNCH(
        kernel, one.cores, nullptr, reinterpret_cast<GM_ADDR>(x), reinterpret_cast<GM_ADDR>(y));
  }
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
  Options options;
  std::set<std::string> wanted;
  for (int i = 1; i < count; ++i) {
    if (std::strcmp(arguments[i], "--seed") == 0 && i + 1 < count) {
      options.seed = std::strtoull(arguments[++i], nullptr, 10);
    } else if (std::strcmp(arguments[i], "--again") == 0) {
      options.again = true;
    } else if (std::strcmp(arguments[i], "--keep") == 0) {
      options.keep = true;
    } else {
      wanted.insert(arguments[i]);
    }
  }
  for (const auto& one : cases::All()) {
    if (wanted.empty() || wanted.count(one.name) != 0) {
      Run(one, options);
    }
  }
  return 0;
}
