// SPDX-License-Identifier: Apache-2.0
// Stands between CANN's generated launch stub and CANN's runtime, by the linker's --wrap
// (cmake/ascend.cmake). The stub (asc-devkit 9.1: extract_host_stub.py, gen_host_stub.py; the same
// calls in 8.5 to 9.2) is part of this library, and does
// - at load: AscendCheckSoCVersion; only where that is true RegisterAscendBinary. Of a failure it
//   prints at most a line, and goes on;
// - at each launch: AllocAscendMemDevice for 8 bytes; without a registered binary it prints and
//   returns 0; else LaunchAscendKernel, of whose status <<<>>> gives nothing back; then
//   FreeAscendMemDevice. The 8 bytes are for a debug build's overflow status. No kernel of ours
//   touches them (ASCENDC_DUMP=0), so none are given out: no device memory is allocated at a
//   launch, nor is there an allocation that could fail unseen.
#include "launch_watch.h"

#include <acl/acl.h>

#include <cstring>

namespace mkv::ops {

namespace {

constexpr uint32_t kNotCalled = UINT32_MAX;
constexpr int32_t kNotLaunched = 107000;  // ACL_ERROR_RT_PARAM_INVALID; CANN has none that fits

// Written by the stub's constructor, before those of this file: plain data, initialised in the
// file.
bool chip_checked = false;
bool chip_accepted = false;
uint32_t registration_status = kNotCalled;
char refusal[1024] = "";

thread_local bool launch_asked = false;
thread_local bool launch_reached = false;
thread_local uint32_t launch_status = 0;

std::string recent_message() {
  const char* message = aclGetRecentErrMsg();
  return message == nullptr || *message == '\0' ? "" : std::string(": ") + message;
}

}  // namespace

std::string chip_name() {
  const char* name = aclrtGetSocName();
  return name == nullptr ? "" : name;
}

std::string registration_problem() {
  if (!chip_checked) {
    return "CANN's launch stub is of a form that mkv_ascend does not know (it knows those of CANN "
           "8.5 to 9.2)";
  }
  if (!chip_accepted) {
    return "CANN takes the kernels for those of another chip" +
           (*refusal == '\0' ? "" : std::string(": ") + refusal);
  }
  if (registration_status != 0) {
    return "CANN's runtime does not load the kernels, error " +
           (registration_status == kNotCalled ? "unknown" : std::to_string(registration_status)) +
           recent_message();
  }
  return "";
}

void forget_launch() {
  launch_asked = false;
  launch_reached = false;
  launch_status = 0;
}

LaunchResult launch_result() {
  if (launch_status != 0) {
    return {
        static_cast<int32_t>(launch_status),
        "the launch failed with error " + std::to_string(launch_status) + recent_message()};
  }
  // A launcher that has nothing to do asks for no launch; of kernels that cannot be launched none
  // may be left out.
  const std::string reason = registration_problem();
  if (!reason.empty() || (launch_asked && !launch_reached)) {
    return {kNotLaunched, "CANN's stub launched nothing" + (reason.empty() ? "" : ": " + reason)};
  }
  return {0, ""};
}

}  // namespace mkv::ops

// The names are the linker's. Hidden: another library in the process may wrap the same ones.
#pragma GCC visibility push(hidden)
extern "C" {

bool __real_AscendCheckSoCVersion(const char* built_for, char* message);
uint32_t __real_RegisterAscendBinary(
    const char* binary, size_t bytes, uint32_t type, void** handle);
uint32_t __real_LaunchAscendKernel(
    void* handle, uint64_t key, uint32_t blocks, void** arguments, uint32_t bytes,
    const void* stream);

bool __wrap_AscendCheckSoCVersion(const char* built_for, char* message) {
  mkv::ops::chip_checked = true;
  // Without a name CANN's check would end the process.
  if (aclrtGetSocName() == nullptr) {
    std::strcpy(mkv::ops::refusal, "its runtime names no chip; is the driver there?");
    return false;
  }
  mkv::ops::chip_accepted = __real_AscendCheckSoCVersion(built_for, message);
  std::strncpy(mkv::ops::refusal, message, sizeof(mkv::ops::refusal) - 1);
  return mkv::ops::chip_accepted;
}

uint32_t __wrap_RegisterAscendBinary(
    const char* binary, size_t bytes, uint32_t type, void** handle) {
  const uint32_t status = __real_RegisterAscendBinary(binary, bytes, type, handle);
  // Once for each kind of core that there are kernels for; a failure stays.
  if (mkv::ops::registration_status == mkv::ops::kNotCalled || status != 0) {
    mkv::ops::registration_status = status;
  }
  return status;
}

uint32_t __wrap_LaunchAscendKernel(
    void* handle, uint64_t key, uint32_t blocks, void** arguments, uint32_t bytes,
    const void* stream) {
  mkv::ops::launch_status =
      __real_LaunchAscendKernel(handle, key, blocks, arguments, bytes, stream);
  mkv::ops::launch_reached = true;
  return mkv::ops::launch_status;
}

uint32_t __wrap_AllocAscendMemDevice(void** memory, uint64_t /*bytes*/) {
  // The first thing that the stub does at a launch.
  mkv::ops::launch_asked = true;
  *memory = nullptr;
  return 0;
}

uint32_t __wrap_FreeAscendMemDevice(void* /*memory*/) {
  return 0;
}

}  // extern "C"
#pragma GCC visibility pop
