#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "engine/envelope.h"

// The texts of failures, collected in one file so that all of them name the operation,
// the ranks, the expected values and the actual ones.

namespace bluecomm {

// Returns a text such as: allreduce 'x'
std::string describe_operation(const Envelope& call, std::string_view name);

// Returns a text such as: allreduce float32 [4, 4] average
std::string describe_call(const Envelope& call);

// One of two calls that do not match. `caller` is its rank and host: "rank 1 (hostB)".
struct MismatchedCall {
  int rank;
  std::string caller;
  const Envelope& call;
};
// Returns the text of a mismatch, which is the same on both ranks.
std::string describe_mismatch(std::string_view name, const MismatchedCall& a,
                              const MismatchedCall& b);

// A message that has not arrived completely.
struct Missing {
  int peer;
  std::size_t received;
  std::size_t expected;
  bool announced;  // its header has arrived, so `expected` is known
};

// Returns a text such as:
// no data from ranks 5, 9 within 30.0 s (received 1.5 of 4.0 MiB from rank 5)
std::string describe_missing(std::span<const Missing> missing,
                             std::span<const int> not_taken,
                             std::chrono::duration<double> waited);

// Returns "rank 5" or "ranks 5, 9".
std::string describe_ranks(std::span<const int> ranks);

// Returns a text such as "1.5 of 4.0 MiB".
std::string describe_part(std::size_t part, std::size_t whole);

}  // namespace bluecomm
