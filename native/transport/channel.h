#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "transport/peer.h"

// Moves messages between this rank and its peers.
//
// One Transport per kind of link (inproc, shm, tcp) and engine; one Channel per peer. A
// new transport implements the four classes below and passes the suite in
// native/tests/transport/conformance.h.
//
// Threads: an engine calls its transports, channels and messages from one thread at a
// time, under its progress lock; they need no locks of their own. Nothing here blocks.
// Only the sleep between prepare_sleep() and finish_sleep() happens outside that lock,
// and it touches nothing but wait_fd().
//
// A message is a header and `nbytes` of payload. Messages of a channel may be received
// in any order of their payloads, but headers arrive in the order of the sends. A small
// payload (eager) travels with its header. A large one stays with the sender until the
// receiver has accepted it, so a message that nobody wants yet costs a header (and a
// bounded buffer, where a transport copies its start ahead) and never stands in the way
// of another one.

namespace bluecomm {

// Payload offsets at which a transport may cut a message are multiples of this, so that
// no element is cut.
inline constexpr std::size_t kChunkAlignment = 64;

// Carried unread by the transport, except `nbytes`.
struct Header {
  std::uint64_t nbytes = 0;
  std::array<std::byte, 248> envelope{};
};
static_assert(sizeof(Header) == 256);

// A message on its way out. Destroying it before the end cancels it: the transport
// reads its memory no more (but see Lease), and the peer's Incoming never completes
// (the engine tells the peer why in a message of its own).
class Outgoing {
 public:
  Outgoing() = default;
  Outgoing(const Outgoing&) = delete;
  Outgoing& operator=(const Outgoing&) = delete;
  virtual ~Outgoing() = default;

  // The prefix [0, released()) of the payload will not be read again, by this process
  // or by the peer. Never shrinks; equals nbytes when the message is done.
  virtual std::size_t released() const = 0;
};

// For a transport that cannot stop reading a payload when its Outgoing is destroyed: as
// long as the transport is a tenant, the memory is not freed. It may be overwritten.
class Lease {
 public:
  Lease() = default;
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  // The tenant's; one that is leaked keeps the memory for good.
  std::shared_ptr<const void> take() {
    if (!held_) held_ = std::make_shared<const char>();
    return held_;
  }
  bool has_tenants() const { return held_.use_count() > 1; }

 private:
  std::shared_ptr<const void> held_;
};

// Memory that two processes (or ranks) have, and that this one may write as well. It is
// here as long as `owner` lives.
struct SharedBytes {
  std::shared_ptr<void> owner;
  std::span<std::byte> bytes;
};

// A message whose header has arrived. Destroying it discards what is left.
class Incoming {
 public:
  Incoming() = default;
  Incoming(const Incoming&) = delete;
  Incoming& operator=(const Incoming&) = delete;
  virtual ~Incoming() = default;

  virtual const Header& header() const = 0;

  // Asks for the payload; called once. `into` is empty, or as long as the payload: then
  // the transport may (it need not) put bytes there itself, and readable() points into
  // it.
  virtual void accept(std::span<std::byte> into) = 0;

  // The next bytes of the payload in order, starting at offset consumed(). Its length
  // is a multiple of kChunkAlignment unless it reaches the end of the payload. Valid
  // until the next consume() or the next poll of the transport (whichever comes first
  // may lengthen it, never move bytes already shown). Any alignment in memory.
  virtual std::span<const std::byte> readable() const = 0;

  // Gives back the first `nbytes` of readable(): the sender may overwrite them.
  virtual void consume(std::size_t nbytes) = 0;
  virtual std::size_t consumed() const = 0;

  // Instead of accept(): the sender's own memory of the payload, where this rank has it
  // too; else nothing. What is written there the sender sees at once, as long as it
  // keeps the memory. See Channel::shares_memory().
  virtual std::optional<SharedBytes> share() { return std::nullopt; }
};

// Of one connection, where a channel is made of connections. Bytes are those of the
// wire.
struct StreamCounters {
  std::string peer;  // its address
  std::uint64_t bytes_sent = 0;
  std::uint64_t chunks_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t chunks_received = 0;

  StreamCounters operator-(const StreamCounters& before) const {
    return {peer, bytes_sent - before.bytes_sent, chunks_sent - before.chunks_sent,
            bytes_received - before.bytes_received,
            chunks_received - before.chunks_received};
  }
};

struct ChannelStats {
  std::uint64_t messages_sent = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t messages_received = 0;
  std::uint64_t bytes_received = 0;
  std::vector<StreamCounters> streams;

  ChannelStats operator-(const ChannelStats& before) const {
    ChannelStats since{messages_sent - before.messages_sent,
                       bytes_sent - before.bytes_sent,
                       messages_received - before.messages_received,
                       bytes_received - before.bytes_received, streams};
    // Streams may have been added meanwhile; none goes.
    for (std::size_t i = 0; i < before.streams.size(); ++i) {
      since.streams[i] = streams[i] - before.streams[i];
    }
    return since;
  }
};

// Link to one peer. It may be used before it is established: messages wait.
class Channel {
 public:
  Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  virtual ~Channel() = default;

  virtual int peer() const = 0;

  // Starts a message. `payload` stays alive and unchanged until released() has passed
  // it or the Outgoing is destroyed. On a lost channel nothing is sent and released()
  // stays 0.
  virtual std::unique_ptr<Outgoing> send(const Header& header,
                                         std::span<const std::byte> payload) = 0;

  // As send(), for a payload that may go to several peers at once: `copies`, empty at
  // first, is handed to each of these sends. A transport that copies payloads leaves
  // there what it has copied, for the others to use. The payload's memory is freed only
  // when `lease` has no tenants.
  virtual std::unique_ptr<Outgoing> send_to_many(const Header& header,
                                                 std::span<const std::byte> payload,
                                                 std::shared_ptr<void>& copies,
                                                 Lease& lease) {
    static_cast<void>(copies);
    static_cast<void>(lease);
    return send(header, payload);
  }

  // Sends a message of at most kMaxPost bytes and forgets it; the payload is copied.
  static constexpr std::size_t kMaxPost = 4096;
  virtual void post(const Header& header, std::span<const std::byte> payload) = 0;

  // Payloads that lie in shared memory, and are too large to be eager, may be shared
  // by their receiver.
  virtual bool shares_memory() const { return false; }

  virtual ChannelStats stats() const = 0;
};

// What a transport reports while it is polled.
class Receiver {
 public:
  virtual ~Receiver() = default;
  virtual void on_message(int peer, std::unique_ptr<Incoming> message) = 0;
  // The link broke (`status` says how), or the peer said goodbye and will send no more.
  // At most one of the two, once per peer. Messages received before stay readable.
  virtual void on_lost(int peer, Status status) = 0;
  virtual void on_goodbye(int peer) = 0;
};

// Three ends: close() tells the peers goodbye and refuses new messages; closed() says
// when all that was sent has been delivered; the destructor frees everything at once.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  // Short name used in logs, tests and BLUECOMM_TRANSPORT, such as "tcp".
  virtual std::string_view name() const = 0;

  // How peers reach this rank, to be published at rendezvous; opaque to the engine.
  virtual std::string offer() const = 0;

  // Whether this rank can exchange messages with `peer` over this transport.
  virtual bool reaches(const Peer& peer) const {
    return peer.offers.contains(std::string(name()));
  }

  // The channel to `peer`, whose offer() is `offer`; dialled at the first message. The
  // transport owns it. Channels exist before the first poll for every peer that may
  // dial.
  virtual Channel& channel(int peer, std::string_view offer) = 0;

  // Moves what can be moved now. True when anything changed.
  virtual bool poll(Receiver& receiver) = 0;

  // Becomes readable when poll() may have something to do, once prepare_sleep() has
  // returned true. -1: never.
  virtual int wait_fd() const = 0;

  // Announces that this rank goes to sleep on wait_fd(). False: there is work already,
  // do not sleep. Each call is followed by finish_sleep().
  virtual bool prepare_sleep() = 0;
  virtual void finish_sleep() = 0;

  // The earliest moment at which poll() must be called even if wait_fd() stays silent
  // (dial retries, handshake deadlines); time_point::max() for none.
  virtual std::chrono::steady_clock::time_point next_timer() const = 0;

  // The peer's process is known to be dead or finished (control plane): drop the link.
  virtual void forget(int peer) = 0;

  virtual void close() = 0;
  virtual bool closed() const = 0;

  // The library that carries the messages is about to be finalized by the program, as
  // by MPI_Finalize. Tells the peers and stops using that library; may take a tenth of
  // a second. A transport without such a library does nothing.
  virtual void release_backend() {}

  // In a forked child: gives up every fd without a word to any peer.
  virtual void abandon_after_fork() noexcept = 0;
};

}  // namespace bluecomm
