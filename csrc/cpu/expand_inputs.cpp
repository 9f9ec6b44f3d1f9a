// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"

#include <algorithm>

namespace mkv::ops {

namespace {

// One request's part of the input and of the output.
struct Part {
  int64_t request;
  int64_t start;   // in the input
  int64_t length;  // in the input
  int64_t kept;    // tokens that were not rejected
  int64_t copied;  // of those, the ones that the output shows
  int64_t first_position;
  int64_t out_start;
  int64_t out_length;
};

class Expansion {
 public:
  explicit Expansion(const ExpandInputs& inputs) : in_(inputs) {}

  void write() const {
    const int64_t live =
        in_.num_tokens > 0 ? std::clamp<int64_t>(in_.num_requests, 0, in_.num_rows) : 0;
    int64_t end = 0;
    int64_t out_end = 0;
    in_.out_query_start_loc[0] = 0;
    for (int64_t request = 0; request < live; ++request) {
      const Part part = part_of(request);
      write_request(part);
      write_rows(part);
      end = part.start + part.length;
      out_end = part.out_start + part.out_length;
    }
    for (int64_t request = live; request < in_.num_rows; ++request) {
      write_padding_request(request, out_end);
    }
    for (int64_t row = out_end; row < in_.num_out_tokens; ++row) {
      write_padding_row(row);
    }
    if (in_.hidden_rows != nullptr) {
      std::fill(
          in_.hidden_rows + std::min(end, in_.num_tokens), in_.hidden_rows + in_.num_tokens, -1);
    }
  }

 private:
  Part part_of(int64_t request) const {
    Part part{};
    const int64_t more = in_.sampled - (in_.shift ? 1 : 0);
    part.request = request;
    part.start = in_.query_start_loc[request];
    part.length = in_.query_start_loc[request + 1] - part.start;
    part.kept = part.length - (in_.num_rejected ? in_.num_rejected[request] : 0);
    part.first_position = in_.positions[inside(part.start)];
    part.copied = part.kept - (in_.shift ? 1 : 0);
    part.out_start = part.start + request * more;
    part.out_length = part.length + more;
    return part;
  }

  int64_t inside(int64_t token) const {
    return std::clamp<int64_t>(token, 0, in_.num_tokens - 1);
  }

  void write_request(const Part& part) const {
    const int64_t request = part.request;
    for (int64_t step = 0; step < in_.sampled; ++step) {
      in_.sample_indices[request * in_.sampled + step] =
          static_cast<int32_t>(part.out_start + part.copied + step);
    }
    in_.out_query_start_loc[request + 1] = static_cast<int32_t>(part.out_start + part.out_length);
    in_.lengths[request] = static_cast<int32_t>(part.first_position + part.out_length);
    in_.next_positions.set(request, part.first_position + part.copied);
    if (in_.hidden_rows != nullptr) {
      for (int64_t place = 0; place < part.length; ++place) {
        in_.hidden_rows[inside(part.start + place)] = static_cast<int32_t>(part.out_start + place);
      }
    }
  }

  void write_rows(const Part& part) const {
    const int64_t tokens = part.copied + in_.sampled;
    const int64_t rows = std::min(part.out_length, in_.num_out_tokens - part.out_start);
    for (int64_t place = 0; place < rows; ++place) {
      const int64_t row = part.out_start + place;
      if (place < tokens) {
        write_token_row(part, place, row);
      } else {
        write_padding_row(row);
      }
    }
  }

  void write_token_row(const Part& part, int64_t place, int64_t row) const {
    const bool masked = place > part.copied;
    in_.out_token_ids[row] = static_cast<int32_t>(token(part, place));
    in_.rejected_mask[row] = 0;
    in_.masked_mask[row] = masked ? 1 : 0;
    const int64_t source = inside(part.start + std::min(place, part.kept - 1));
    const int64_t beyond = std::max<int64_t>(place - (part.kept - 1), 0);
    const int64_t position = part.first_position + place;
    const bool fits = position >= 0 && position < in_.max_model_len;
    in_.out_positions.set(row, fits ? position : 0);
    for (size_t axis = 0; axis < in_.rope_positions.size(); ++axis) {
      in_.out_rope_positions[axis].set(row, fits ? in_.rope_positions[axis][source] + beyond : 0);
    }
    for (size_t group = 0; group < in_.groups.size(); ++group) {
      in_.slots[static_cast<int64_t>(group) * in_.slot_stride + row] =
          fits ? in_.groups[group].slot(part.request, position) : kPaddingSlot;
    }
  }

  int64_t token(const Part& part, int64_t place) const {
    if (place < part.copied) {
      return in_.token_ids[inside(part.start + (in_.shift ? 1 : 0) + place)];
    }
    return place == part.copied ? in_.next_token_ids[part.request] : in_.parallel_token_id;
  }

  void write_padding_row(int64_t row) const {
    in_.out_token_ids[row] = static_cast<int32_t>(in_.padding_token_id);
    in_.rejected_mask[row] = 1;
    in_.masked_mask[row] = 0;
    in_.out_positions.set(row, 0);
    for (const OutIndices& axis : in_.out_rope_positions) {
      axis.set(row, 0);
    }
    for (size_t group = 0; group < in_.groups.size(); ++group) {
      in_.slots[static_cast<int64_t>(group) * in_.slot_stride + row] = kPaddingSlot;
    }
  }

  void write_padding_request(int64_t request, int64_t out_end) const {
    for (int64_t step = 0; step < in_.sampled; ++step) {
      in_.sample_indices[request * in_.sampled + step] = 0;
    }
    in_.out_query_start_loc[request + 1] = static_cast<int32_t>(out_end);
    in_.lengths[request] = 0;
    in_.next_positions.set(request, 0);
  }

  const ExpandInputs& in_;
};

}  // namespace

void expand_inputs(const ExpandInputs& inputs) {
  Expansion(inputs).write();
}

}  // namespace mkv::ops
