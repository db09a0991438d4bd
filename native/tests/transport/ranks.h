#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "tests/transport/conformance.h"

// Drives the ranks of a World. The checks of the conformance suite are written with
// these classes.

namespace bluecomm::test {

using namespace std::chrono_literals;

// Fills `bytes` with pseudo-random bytes that depend on `seed` and on their offset.
void fill(std::span<std::byte> bytes, std::uint64_t seed);
bool matches(std::span<const std::byte> bytes, std::uint64_t seed);

Header make_header(std::uint64_t tag, std::size_t nbytes);
std::uint64_t tag_of(const Header& header);

// Reads a message into memory of its own.
class Reader {
 public:
  enum class Mode { kViews, kInto };

  Reader(int peer, std::unique_ptr<Incoming> message);

  int peer() const { return peer_; }
  std::uint64_t tag() const { return tag_of(message_->header()); }
  std::size_t nbytes() const { return data_.size(); }
  std::size_t consumed() const { return message_->consumed(); }
  Incoming& message() { return *message_; }

  void accept(Mode mode);
  bool accepted() const { return accepted_; }
  // Consumes the readable bytes in steps of at most `step` bytes. Returns true if it
  // consumed any.
  bool read(std::size_t step, Findings& findings);
  bool done() const { return accepted_ && consumed() == data_.size(); }
  // Adds a finding unless the payload equals what `fill(_, tag)` makes.
  void verify(Findings& findings) const;

 private:
  int peer_;
  std::unique_ptr<Incoming> message_;
  bool accepted_ = false;
  std::vector<std::byte> into_;
  std::vector<std::byte> data_;
};

// A message that is being sent, and its memory.
struct Sending {
  std::span<std::byte> payload;
  std::unique_ptr<Outgoing> message;

  bool done() const { return message->released() == payload.size(); }
};

// One rank: its transport, the messages that have arrived, and the peers that are lost
// or have said goodbye.
class Rank final : public Receiver {
 public:
  Rank(World& world, int rank);
  ~Rank() override;

  int rank() const { return rank_; }
  Transport& transport() const { return *world_.transports[index_]; }
  void free_transport() { world_.transports[index_].reset(); }
  bool alive() const { return world_.transports[index_] != nullptr; }

  Channel& channel(int to) { return world_.channel(rank_, to); }
  // Sends `nbytes` made by fill(_, tag).
  Sending send(int to, std::uint64_t tag, std::size_t nbytes);
  // Starts a growing message of `nbytes` zeros. Its `message` is null if the transport
  // sends none.
  Sending send_growing(int to, std::uint64_t tag, std::size_t nbytes);
  // Returns the message with this tag, or nullptr.
  Reader* find(std::uint64_t tag);
  bool poll() { return transport().poll(*this); }

  std::vector<std::unique_ptr<Reader>> arrived;  // in order of arrival
  std::map<int, Status> lost;
  std::set<int> goodbyes;
  std::size_t endings = 0;  // calls of on_lost and on_goodbye

 private:
  void on_message(int peer, std::unique_ptr<Incoming> message) override;
  void on_lost(int peer, Status status) override;
  void on_goodbye(int peer) override;

  World& world_;
  int rank_;
  std::size_t index_;
  using Heap = std::vector<std::vector<std::byte>>;
  Heap heap_;
  Lease lease_;  // of heap_
};

// All ranks of a world, driven by one thread.
class Ranks {
 public:
  Ranks(const Scheme& scheme, int size, Findings& findings);
  ~Ranks();

  Rank& operator[](int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  Findings& findings() { return findings_; }

  // Polls and sleeps until `done` returns true. Returns false, with a finding that
  // names `what`, after the scheme's limit. `done` must not leave anything to do by
  // itself, or the ranks oversleep.
  bool drive(std::string_view what, const std::function<bool()>& done);
  // Like drive(), but never sleeps, so `done` may do some work each time.
  bool spin(std::string_view what, const std::function<bool()>& done);
  // Polls and sleeps for about `time`.
  void drive_for(std::chrono::milliseconds time);
  // Waits for message `tag` at `rank`. Returns nullptr, with a finding, if it does not
  // arrive.
  Reader* await(int rank, std::uint64_t tag);
  // Reads the whole message and verifies it.
  void read_all(Reader& reader, std::size_t step = SIZE_MAX);

 private:
  bool poll_once();
  // Sleeps until a transport has news, at most until `limit`.
  void sleep(std::chrono::steady_clock::time_point limit);

  bool drive(std::string_view what, const std::function<bool()>& done, bool may_sleep);

  Findings& findings_;
  const std::chrono::milliseconds limit_;
  World world_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  bool overslept_ = false;  // nothing but the limit ended the last sleep
};

}  // namespace bluecomm::test
