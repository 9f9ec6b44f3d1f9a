// SPDX-License-Identifier: Apache-2.0
// Loaded before libfaketime 0.9.10, whose clock_nanosleep refuses each moment of the monotonic clock
// that is told as such (EINVAL): since Python 3.11 time.sleep waits for one.
#include <cerrno>
#include <ctime>

#include <sys/syscall.h>
#include <unistd.h>

extern "C" int clock_nanosleep(clockid_t clock, int flags, const timespec* until, timespec* left) noexcept {
  const int before = errno;
  const int error = syscall(SYS_clock_nanosleep, clock, flags, until, left) == 0 ? 0 : errno;
  errno = before;
  return error;
}
