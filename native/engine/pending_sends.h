#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/envelope.h"
#include "engine/plan.h"
#include "transport/channel.h"

namespace bluecomm {

// The messages that the running phases of an operation send, and lingering messages of
// earlier phases. The destructor cancels messages that peers have not taken yet.
class PendingSends {
 public:
  // The facts of an operation that all its messages share.
  struct MessageContext {
    const Envelope& call;  // without the fields of single messages
    std::span<Channel* const> channels;
    Lease& lease;  // of the memory that the messages read
  };

  // Says which messages start before their bytes are final, if the transport can do
  // that.
  enum class Growing {
    kNone,
    kBetweenMachines,  // not those whose memory the peers share or copy at once
    kAll,
  };
  // Adds `sends`, which must outlive this object. supply() starts them.
  void add(std::span<const Send> sends, std::uint32_t phase, Growing growing,
           const MessageContext& context);

  // Sends what has become final: the first ready(bytes, phase) bytes of each message.
  // The messages to a peer are sent in the order of their phases, because the peer
  // needs them in that order. If is_limited(), growing messages between machines
  // together do not get further ahead of the `received` bytes than their channels'
  // lead(). Returns whether anything was sent.
  using Ready =
      std::function<std::size_t(std::span<const std::byte> bytes, std::uint32_t phase)>;
  bool supply(const Ready& ready, std::size_t received, const MessageContext& context);
  bool is_limited() const { return lead_ != Channel::kAnyLead; }

  // Returns whether peers have finished reading all messages.
  bool released();
  bool all_released() const;

  // Returns whether peers have finished reading all messages of the phases up to
  // `phase` except lingering ones.
  bool phase_released(std::uint32_t phase);

  // Returns whether peers have finished reading what the messages of the phases up to
  // `phase` send of `range`.
  bool released(std::span<const std::byte> range, std::uint32_t phase) const;

  // Returns whether `peer` has not finished reading some message.
  bool has_for(int peer) const;

  // Cancels the messages to `peer`, which is lost.
  void drop(int peer);

  // Appends the peers that have not finished reading what was sent to them.
  void collect_readers(std::vector<int>& peers) const;

 private:
  struct Message {
    const Send* send;
    std::uint32_t phase;
    std::unique_ptr<Outgoing> outgoing;  // null until the message is started
    bool is_limited = false;             // by lead_
    std::size_t supplied = 0;
    std::size_t released() const { return outgoing ? outgoing->released() : 0; }
    bool is_supplied() const { return outgoing && supplied == send->bytes.size(); }
    bool is_released() const {
      return is_supplied() && outgoing->released() == send->bytes.size();
    }
  };

  std::size_t growth_left(std::size_t received) const;
  void forget_released();
  bool follows_unreleased(std::size_t index) const;

  std::vector<Message> messages_;         // not released at the last check
  std::size_t unsupplied_ = 0;            // messages that are not supplied completely
  std::size_t lead_ = Channel::kAnyLead;  // the least one of limited messages
  std::size_t grown_ = 0;                 // supplied bytes of limited messages
};

}  // namespace bluecomm
