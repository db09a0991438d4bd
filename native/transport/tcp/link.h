#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "transport/channel.h"
#include "transport/tcp/frame_parser.h"
#include "transport/tcp/inbox.h"
#include "transport/tcp/outbox.h"
#include "transport/tcp/streams.h"

namespace bluecomm::tcp {

// Messages over a set of connected sockets: framing, placement of chunks, room for the
// peer, goodbye. Knows nothing of ranks, dialling, epoll or threads: its owner says
// which streams the kernel reports ready, and calls progress().
class Link final : private FrameSink {
 public:
  Link(std::size_t eager_bytes, std::shared_ptr<SegmentPool> pool)
      : outbox_(streams_, eager_bytes), inbox_(streams_, std::move(pool)) {}

  // Messages wait until the link is open. After end() nothing is sent.
  std::unique_ptr<Outgoing> send(const Header& header,
                                 std::span<const std::byte> payload);
  void post(const Header& header, std::span<const std::byte> payload);
  ChannelStats stats() const;

  // Takes over sockets whose handshakes are done. `announce`: tells the peer first that
  // this group of streams has been chosen.
  void open(Streams::Set streams, bool announce);
  bool is_open() const { return !streams_.empty(); }
  // Something waits for the link to open.
  bool is_wanted() const { return streams_.empty() && streams_.has_early_frames(); }

  Streams::Set& streams() { return streams_.all(); }

  // Moves what can be moved, up to a few MiB. True if anything moved or ended.
  bool progress();
  // progress() or take_arrived() would do something now.
  bool busy() const;

  std::unique_ptr<Incoming> take_arrived() { return inbox_.take_arrived(); }
  bool has_arrived() const { return inbox_.has_arrived(); }

  // Refuses new messages; tells the peer once all others are through.
  void say_goodbye() { closing_ = true; }
  // The peer has received everything, the goodbye included.
  bool goodbye_seen() const { return goodbye_seen_; }
  // The peer has said goodbye, and everything before it has been received.
  bool peer_finished() const { return peer_finished_; }

  // Set when the connection is gone: why, with the stream's address, or "" when the
  // peer had finished.
  const std::optional<std::string>& ended() const { return ended_; }

  // Lets go of the sockets and of all messages; received ones keep what they have.
  void end();
  void abandon() noexcept;

 private:
  Place begin(const Frame& frame, std::size_t stream) override;
  std::string_view end(const Frame& frame, std::size_t stream) override;

  bool read_all(std::size_t budget);
  bool write_all(std::size_t budget);
  void queue_goodbye();
  void check_ends();

  Streams streams_;
  Outbox outbox_;
  Inbox inbox_;
  bool closing_ = false;
  bool refusing_ = false;  // end() was called
  bool goodbye_queued_ = false;
  bool goodbye_seen_ = false;
  bool peer_finished_ = false;
  std::optional<std::string> ended_;
};

}  // namespace bluecomm::tcp
