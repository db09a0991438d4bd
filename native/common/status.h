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
  kInternal = 6,  // a defect of bluecomm or the system  -> BluecommError
};

// The outcome of an operation. `text` is the complete message for the user; `rank` is
// the rank that caused the failure, or -1.
struct Status {
  Code code = Code::kOk;
  std::string text;
  int rank = -1;

  bool ok() const { return code == Code::kOk; }
};

}  // namespace bluecomm
