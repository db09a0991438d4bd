#pragma once

#include <string>
#include <utility>

namespace bluecomm {

// Kinds of failures that callers handle differently. The binding maps each code to one
// Python exception class.
enum class Code : int {
  kOk = 0,
  kInvalid = 1,   // the call itself is invalid          -> ValueError
  kMismatch = 2,  // ranks disagree about an operation   -> MismatchError
  kPeerLost = 3,  // a rank exited or its link broke     -> PeerLostError
  kTimedOut = 4,  // a deadline passed                   -> CommunicationTimeout
  kClosed = 5,    // the engine has been shut down       -> ShutdownError
  kFreed = 6,     // a member has freed the group        -> ShutdownError
  kInternal = 7,  // a defect of bluecomm or the system  -> BluecommError
};

// Returns whether the code says that a rank has ended its part of a call on purpose.
// This does no harm to other ranks on which the call has ended.
constexpr bool is_withdrawal(Code code) {
  return code == Code::kClosed || code == Code::kFreed;
}

// The outcome of an operation. `text` is the complete message for the user; `rank` is
// the rank that caused the failure, or -1. `was_carried_out` means that the operation
// has its result, and that the failure is that of an earlier one.
struct Status {
  Code code = Code::kOk;
  std::string text;
  int rank = -1;
  bool was_carried_out = false;

  bool ok() const { return code == Code::kOk; }
};

}  // namespace bluecomm
