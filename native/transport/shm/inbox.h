#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "transport/channel.h"
#include "transport/shm/outbox.h"
#include "transport/shm/ring_connection.h"
#include "transport/shm/wire.h"

namespace bluecomm::shm {

class LargeIncoming;

// Receives the messages of a channel.
class Inbox : public std::enable_shared_from_this<Inbox> {
 public:
  // `outbox` carries the answers.
  explicit Inbox(Outbox& outbox) : outbox_(&outbox) {}

  void attach(RingConnection& connection);
  // Messages that have arrived stay readable afterwards.
  void detach();

  // Returns the message that begins with `frame`, which is at the reader's position.
  // Throws ConnectionError if the frame makes no sense.
  std::unique_ptr<Incoming> take_message(const Frame& frame);
  // Handles any other frame about a message of this inbox. Throws like take_message().
  void on_frame(const Frame& frame);

  // Tells the sender what has been consumed since the last call. Returns true if
  // anything was.
  bool flush();
  bool has_unflushed() const { return !unflushed_.empty(); }

  std::uint64_t messages() const { return messages_; }
  std::uint64_t nbytes() const { return nbytes_; }

 private:
  friend class EagerIncoming;
  friend class LargeIncoming;

  std::unique_ptr<Incoming> take_eager(const Frame& frame, const Header& header);
  std::unique_ptr<Incoming> take_large(const Frame& frame, const Header& header);
  void on_chunk(LargeIncoming& message, const Frame& frame);
  void on_cancel(LargeIncoming& message);

  // Called by the messages.
  void answer(FrameKind kind, std::uint64_t id, std::uint64_t length = 0);
  void give_credit(std::uint64_t nbytes);
  // False if the sender may have changed the payload since it was shown.
  bool still_valid(const LargeIncoming& message) const;

  Outbox* outbox_;
  RingConnection* connection_ = nullptr;
  std::shared_ptr<Mapping> memory_;   // of the connection; still_valid() reads it
  RingDirection* inbound_ = nullptr;  // in memory_
  std::uint64_t last_id_ = 0;
  std::unordered_map<std::uint64_t, LargeIncoming*> large_;  // not consumed completely
  std::vector<std::uint64_t> unflushed_;
  std::uint64_t credit_ = 0;  // not yet returned to the sender
  std::uint64_t messages_ = 0;
  std::uint64_t nbytes_ = 0;
};

}  // namespace bluecomm::shm
