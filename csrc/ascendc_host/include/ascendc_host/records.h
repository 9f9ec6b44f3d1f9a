// SPDX-License-Identifier: Apache-2.0
// What a launch leaves behind: problems found and work counted, as values and as JSON.
#ifndef MKV_ASCENDC_HOST_RECORDS_H_
#define MKV_ASCENDC_HOST_RECORDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "platform.h"

namespace ascendc_host {

// A line of kernel source. As the last, defaulted argument of a call it is the caller's line, so
// that a kernel is written as for the NPU and still gets its lines in the messages.
struct Where {
  const char* file = "";
  int line = 0;
  static constexpr Where Here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return Where{file, line};
  }
};

inline std::string BaseName(const char* path) {
  std::string text(path);
  const auto slash = text.find_last_of('/');
  return slash == std::string::npos ? text : text.substr(slash + 1);
}

inline std::string Text(const Where& where) {
  return BaseName(where.file) + ":" + std::to_string(where.line);
}

struct Problem {
  std::string kind;  // one word for tests and scripts; README.md lists them
  int64_t core = -1;
  std::string pipe;
  std::string buffer;
  Where where;
  std::string message;
  int64_t times = 1;
};

// Of one core, in one launch.
struct Counters {
  int64_t core = 0;
  int64_t instructions[kPipes] = {};
  int64_t vector_repeats = 0;
  int64_t flags = 0;
  int64_t barriers = 0;
  // Bytes asked for between global memory and UB, and what they cost: all of the sectors of 32
  // bytes that an access touches.
  int64_t read_bytes = 0;
  int64_t read_cost = 0;
  int64_t write_bytes = 0;
  int64_t write_cost = 0;
  int64_t cache_lines = 0;  // loaded by the scalar unit; 64 bytes each, in read_cost as well
  int64_t wrapped = 0;      // elements whose int result did not fit and wrapped around
  int64_t ub_bytes = 0;     // of buffers, at most at one time
};

struct Report {
  std::string kernel;
  int64_t blocks = 0;
  uint64_t seed = 0;
  std::vector<Problem> problems;
  std::vector<Counters> cores;
};

inline std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
    }
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

inline std::string Field(const char* name, int64_t value) {
  return Quoted(name) + ": " + std::to_string(value);
}

inline std::string Json(const Problem& problem) {
  return "{\"kind\": " + Quoted(problem.kind) + ", " + Field("core", problem.core) +
         ", \"pipe\": " + Quoted(problem.pipe) + ", \"buffer\": " + Quoted(problem.buffer) +
         ", \"file\": " + Quoted(BaseName(problem.where.file)) + ", " +
         Field("line", problem.where.line) + ", " + Field("times", problem.times) +
         ", \"message\": " + Quoted(problem.message) + "}";
}

inline std::string Json(const Counters& counters) {
  std::string instructions;
  for (int pipe = 0; pipe < kPipes; ++pipe) {
    instructions +=
        (pipe ? ", " : "") + Field(Name(static_cast<pipe_t>(pipe)), counters.instructions[pipe]);
  }
  return "{" + Field("core", counters.core) + ", \"instructions\": {" + instructions + "}, " +
         Field("vector_repeats", counters.vector_repeats) + ", " + Field("flags", counters.flags) +
         ", " + Field("barriers", counters.barriers) + ", " +
         Field("read_bytes", counters.read_bytes) + ", " + Field("read_cost", counters.read_cost) +
         ", " + Field("write_bytes", counters.write_bytes) + ", " +
         Field("write_cost", counters.write_cost) + ", " +
         Field("cache_lines", counters.cache_lines) + ", " + Field("wrapped", counters.wrapped) +
         ", " + Field("ub_bytes", counters.ub_bytes) + "}";
}

template <typename T>
std::string JsonList(const std::vector<T>& items) {
  std::string out = "[";
  for (const auto& item : items) {
    out += (out.size() > 1 ? ", " : "") + Json(item);
  }
  return out + "]";
}

inline std::string Json(const Report& report) {
  return "{\"kernel\": " + Quoted(report.kernel) + ", " + Field("blocks", report.blocks) +
         ", \"seed\": " + std::to_string(report.seed) +
         ", \"problems\": " + JsonList(report.problems) + ", \"cores\": " + JsonList(report.cores) +
         "}";
}

}  // namespace ascendc_host

#endif  // MKV_ASCENDC_HOST_RECORDS_H_
