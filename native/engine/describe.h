#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "engine/envelope.h"

// The texts of failures, in one place, so that all name the operation, the ranks, what
// was expected and what was got.

namespace bluecomm {

// allreduce 'x'
std::string describe_operation(const Envelope& call, std::string_view name);

// allreduce float32 [4, 4] average
std::string describe_call(const Envelope& call);

// One side of a disagreement; `place` is its rank and host, as "rank 1 (hostB)".
struct Caller {
  int rank;
  std::string place;
  const Envelope& call;
};
std::string describe_mismatch(std::string_view name, const Caller& a, const Caller& b);

// One message that is not complete.
struct Missing {
  int peer;
  std::size_t received;
  std::size_t expected;
  bool announced;  // its header has arrived, so `expected` is known
};

// no data from ranks 5, 9 within 30.0 s (received 1.5 of 4.0 MiB from rank 5)
std::string describe_missing(std::span<const Missing> missing,
                             std::span<const int> not_taken,
                             std::chrono::duration<double> waited);

// rank 5 / ranks 5, 9
std::string describe_ranks(std::span<const int> ranks);

// 1.5 of 4.0 MiB
std::string describe_part(std::size_t part, std::size_t whole);

}  // namespace bluecomm
