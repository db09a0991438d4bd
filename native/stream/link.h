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
#include "stream/lead.h"
#include "stream/options.h"
#include "stream/outbox.h"
#include "stream/streams.h"

namespace bluecomm::stream {

// Sends and receives messages over a set of connected sockets, to which more may be
// added at any time. The link does the framing, distributes chunks over the sockets,
// limits what the peer may send, and says goodbye. It knows nothing of ranks, dialing,
// epoll or threads: its owner marks the streams that the kernel reports ready, and
// calls progress().
class Link final : private FrameSink {
 public:
  // `head_nbytes` is the length of each message's head, 1 to kMaxHead and the same at
  // both ends. `checksum` says whether this end sends checksums; received ones are
  // always verified.
  Link(std::size_t head_nbytes, const OutboxSettings& settings,
       std::shared_ptr<SegmentPool> pool, bool checksum = false)
      : streams_(checksum),
        outbox_(streams_, settings),
        inbox_(streams_, head_nbytes, std::move(pool), settings.eager_credit / 16) {}

  // Starts to send a message; `message` must be new. The caller keeps `payload` alive
  // and unchanged up to message.released(), or until `message` is destroyed. Messages
  // wait until the link is open. After end() nothing is sent.
  void send(SentMessage& message, std::span<const std::byte> head,
            std::span<const std::byte> payload);
  // Like send(), for a payload that is computed while it is sent: message.grow() says
  // how much of it is final, at first nothing. Its chunks are short. The payload must
  // not be empty, and is never eager.
  void send_growing(SentMessage& message, std::span<const std::byte> head,
                    std::span<const std::byte> payload);
  // Sends a message whose payload is copied.
  void post(std::span<const std::byte> head, std::span<const std::byte> payload);
  LinkStats stats() const;

  // Adds a socket whose handshake is done; the first one opens the link. `announce`
  // tells the peer, by a kOpen frame, that this stream is used.
  void add(StreamSocket socket, bool announce);
  bool is_open() const { return !streams_.empty(); }
  // Whether a message waits for the link to open.
  bool is_wanted() const { return streams_.empty() && streams_.has_early_frames(); }

  Streams::Set& streams() { return streams_.all(); }
  const Streams::Set& streams() const { return streams_.all(); }

  // Moves data in both directions, up to a limit of a few MiB. Returns whether anything
  // moved or ended.
  bool progress();
  // Whether progress() or take_arrived() would do something now.
  bool busy() const;
  // Whether progress() would write frames, or the rest of a chunk, now.
  bool has_unsent() const;
  // When busy() becomes true without an event from the kernel, or max.
  Clock::time_point next_timer() const;
  // Sends chunks on the first `count` streams only.
  void use(std::size_t count) { in_use_ = count; }
  std::size_t in_use() const { return in_use_; }
  // Sets the size of chunks; see SendingLimits::chunk.
  void cut_chunks(std::size_t nbytes) { chunk_ = nbytes; }
  // See lead_on(). Asks the kernel.
  std::size_t lead() const;
  // Whether chunks will be sent on stream 0 only. Messages may then be unsolicited.
  void set_single_stream(bool single) { outbox_.set_single_stream(single); }
  // Whether there are chunks to send but no stream can take one.
  bool is_blocked() const;
  // Makes the next turn try a single stream again, even if the stream was full. The
  // kernel reports it writable only once a third of its buffer is free, but accepts
  // any number of bytes before. For callers that poll.
  void retry_single_stream();
  // The payload bytes that streams have begun to write.
  std::uint64_t bytes_started() const { return outbox_.stats().bytes; }
  // The bytes that the peer's kernel has acknowledged. Asks the kernel.
  std::uint64_t bytes_acknowledged() const;
  // Whether the peer's kernel has acknowledged all bytes of the streams beyond
  // in_use(). Asks the kernel.
  bool is_drained() const;

  std::unique_ptr<ReceivedMessage> take_arrived() { return inbox_.take_arrived(); }
  bool has_arrived() const { return inbox_.has_arrived(); }
  // Sets a buffer for message number `message` (counted from 0), whose head has not
  // arrived yet. If the message fits into `into` and is not eager, it arrives
  // accepted(). With `announce` the peer is told, and sends the payload immediately.
  // The numbers of successive calls must ascend.
  void expect(std::uint64_t message, std::span<std::byte> into, bool announce = true) {
    inbox_.expect(message, into, announce);
  }

  // Asks the end that dialed to open streams up to `count` in all.
  void ask_for_streams(std::size_t count);
  // The number of streams that the peer has asked for, or 0.
  std::size_t streams_asked_for() const { return asked_for_; }

  // Tells the peer that this process is alive.
  void send_heartbeat();
  // All bytes received, frames included.
  std::uint64_t bytes_received() const;

  // Bytes of frames queued on stream 0, and those of them that the kernel has taken.
  std::uint64_t queued() const { return streams_.queued(); }
  std::uint64_t flushed() const { return streams_.flushed(); }

  // Refuses new messages, and says goodbye to the peer once all others are sent.
  void say_goodbye() { closing_ = true; }
  // Whether the peer has received everything, the goodbye included.
  bool goodbye_seen() const { return goodbye_seen_; }
  // Whether the peer has said goodbye and everything before it was received.
  bool peer_finished() const { return peer_finished_; }

  // Set once the link has ended: the error with the stream's address, or "" if the peer
  // had said goodbye.
  const std::optional<std::string>& ended() const { return ended_; }

  // Closes the sockets and detaches all messages. Received messages keep the data that
  // has arrived.
  void end();
  // In a forked child: closes the copies of all descriptors.
  void abandon() noexcept;

 private:
  Destination begin(const Frame& frame, std::size_t stream) override;
  std::string_view end(const Frame& frame, std::size_t stream) override;

  bool takes_chunks(std::size_t stream) const {
    return stream == 0 || (stream < in_use_ && !outbox_.has_unsolicited_chunks());
  }
  bool passes_over(std::size_t stream, std::size_t chunk);
  bool read_all(std::size_t budget, std::size_t messages);
  bool write_all(std::size_t budget, bool with_chunks);
  void queue_goodbye();
  void check_goodbye();
  void check_ends();

  Streams streams_;
  Outbox outbox_;
  Inbox inbox_;
  std::size_t in_use_ = kMaxStreams;
  std::size_t chunk_ = 0;
  PeerStreams peer_streams_;
  Clock::time_point rates_updated_at_;  // of all streams
  bool held_chunks_ = false;            // the last progress() wrote no chunks
  std::size_t asked_for_ = 0;
  bool closing_ = false;
  bool refusing_ = false;  // end() was called
  bool goodbye_queued_ = false;
  bool goodbye_seen_ = false;
  std::optional<std::uint64_t> peer_chunks_;  // chunks it sent, by its goodbye
  bool peer_finished_ = false;
  std::optional<std::string> ended_;
};

}  // namespace bluecomm::stream
