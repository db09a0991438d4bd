#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "common/gate.h"
#include "common/status.h"

namespace bluecomm {

// What Ticket::write_answer() throws if this rank's library has failed.
class TicketFailure : public std::runtime_error {
 public:
  explicit TicketFailure(Status status)
      : std::runtime_error(status.text), status_(std::move(status)) {}

  const Status& status() const { return status_; }

 private:
  Status status_;
};

// A message of a call between this rank and another one, which a library moves.
struct LibraryMessage {
  int peer = 0;  // in the world
  bool is_sent = false;
  std::size_t nbytes = 0;
};

// Orders a call that the library of a device carries out: each member makes an offer.
// The first member, once it has all of them, asks the others for a proposal, and
// answers with the call's number. As a gate it opens when the library has taken the
// call, and fails when the library will not take it, in any phase. The dispatcher calls
// these functions under the progress lock, so none of them blocks or calls the engine.
class Ticket : public Gate {
 public:
  // A multiple of the size of any element.
  static constexpr std::size_t kAnswerBytes = 144;

  // This member's facts, as many bytes on each member.
  virtual std::span<const std::byte> offer() const = 0;
  // Called on the first member, with the offers of all members in their order. Throws
  // std::invalid_argument if the offers do not suit one another; the call then gets no
  // number.
  virtual void check_offers(std::span<const std::byte> offers) = 0;
  // Called on each other member, once all members have called. Returns a number below
  // which this member will take the call under no circumstances.
  virtual std::uint64_t propose() = 0;
  // Called on the first member, with the proposals of the others. Writes the answer for
  // all members. Throws TicketFailure.
  virtual void write_answer(std::span<const std::uint64_t> proposals,
                            std::span<std::byte> answer) = 0;
  // Called on each member with the answer.
  virtual void take_answer(std::span<const std::byte> answer) = 0;
  // The operation has failed; its call must not reach the library.
  virtual void fail(const Status& status) = 0;
  // The messages of a call that is one of sends and receives. A collective of the
  // library has none, because the library chooses their route.
  virtual std::vector<LibraryMessage> messages() const = 0;
};

}  // namespace bluecomm
