#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "stream/frame_parser.h"
#include "stream/inbox.h"
#include "stream/options.h"
#include "stream/outbox.h"
#include "stream/streams.h"

namespace bluecomm::stream {

// Messages over a set of connected sockets, to which more may be added at any time:
// framing, placement of chunks, room for the peer, goodbye. Knows nothing of ranks,
// dialling, epoll or threads: its owner says which streams the kernel reports
// ready, and calls progress().
class Link final : private FrameSink {
 public:
  // `head_nbytes`: what heads every message, the same at both ends; 1 to kMaxHead.
  // `checksum`: what this end sends goes with one. What comes is checked if it has one.
  Link(std::size_t head_nbytes, std::size_t eager_bytes,
       std::shared_ptr<SegmentPool> pool, bool checksum = false)
      : streams_(checksum),
        outbox_(streams_, eager_bytes),
        inbox_(streams_, head_nbytes, std::move(pool)) {}

  // Starts a message; `message` is new. `payload` stays alive and unchanged until
  // released() has passed it or `message` is destroyed. Messages wait until the link is
  // open. After end() nothing is sent.
  void send(SentMessage& message, std::span<const std::byte> head,
            std::span<const std::byte> payload);
  // Sends a message and forgets it; the payload is copied.
  void post(std::span<const std::byte> head, std::span<const std::byte> payload);
  LinkStats stats() const;

  // Takes over a socket whose handshake is done; the first one opens the link.
  // `announce`: tells the peer that this stream is used.
  void add(UniqueFd socket, bool announce);
  bool is_open() const { return !streams_.empty(); }
  // Something waits for the link to open.
  bool is_wanted() const { return streams_.empty() && streams_.has_early_frames(); }

  Streams::Set& streams() { return streams_.all(); }
  const Streams::Set& streams() const { return streams_.all(); }

  // Moves what can be moved, up to a few MiB. True if anything moved or ended.
  bool progress();
  // progress() or take_arrived() would do something now.
  bool busy() const;
  // When busy() becomes true without news of the kernel; max: not at all.
  Clock::time_point next_timer() const;
  // Chunks are sent on the first `count` streams only.
  void use(std::size_t count) { in_use_ = count; }
  // There are chunks to be sent, and no stream takes one.
  bool is_blocked() const;
  // Bytes of payloads that streams have begun to write.
  std::uint64_t bytes_started() const { return outbox_.stats().bytes; }
  // Bytes that the peer's kernel has acknowledged; asks the kernel.
  std::uint64_t bytes_acknowledged() const;

  std::unique_ptr<ReceivedMessage> take_arrived() { return inbox_.take_arrived(); }
  bool has_arrived() const { return inbox_.has_arrived(); }
  // Memory for message number `message`, counted from 0, whose head has not come yet:
  // if it is no longer than `into`, its payload lands there without being asked for,
  // unless it is eager; then the message comes accepted(). Numbers ascend.
  void expect(std::uint64_t message, std::span<std::byte> into) {
    inbox_.expect(message, into);
  }

  // Asks the end that dialled for so many streams in all.
  void ask_for_streams(std::size_t count);
  // How many the peer would like; 0: it has not said.
  std::size_t streams_asked_for() const { return asked_for_; }

  // Tells the peer that this process runs.
  void send_heartbeat();
  // Bytes that have come, whatever they were.
  std::uint64_t bytes_received() const;

  // What was queued on stream 0 before the kernel takes it: flushed() of queued().
  std::uint64_t queued() const { return streams_.queued(); }
  std::uint64_t flushed() const { return streams_.flushed(); }

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
  Destination begin(const Frame& frame, std::size_t stream) override;
  std::string_view end(const Frame& frame, std::size_t stream) override;

  bool takes_chunks(std::size_t stream) const { return stream < in_use_; }
  bool passes_over(std::size_t stream, std::size_t chunk);
  bool read_all(std::size_t budget);
  bool write_all(std::size_t budget);
  void queue_goodbye();
  void check_goodbye();
  void check_ends();

  Streams streams_;
  Outbox outbox_;
  Inbox inbox_;
  std::size_t in_use_ = kMaxStreams;
  Clock::time_point rates_updated_at_;  // when those of all streams were updated
  std::size_t asked_for_ = 0;
  bool closing_ = false;
  bool refusing_ = false;  // end() was called
  bool goodbye_queued_ = false;
  bool goodbye_seen_ = false;
  std::optional<std::uint64_t> peer_chunks_;  // said in its goodbye: all that it sent
  bool peer_finished_ = false;
  std::optional<std::string> ended_;
};

}  // namespace bluecomm::stream
