#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "transport/peer.h"

// The interface of a transport: it moves messages between this rank and its peers.
//
// An engine has one Transport per kind of link, such as shm or tcp, and a Transport has
// one Channel per peer. A new transport implements Transport, Channel, Outgoing and
// Incoming, and passes the suite in native/tests/transport/conformance.h.
//
// Threads: an engine calls its transports, channels and messages from one thread at a
// time, under its progress lock, so they need no locks of their own. No function may
// block; only release_backend() may take a tenth of a second. Only the sleep between
// prepare_sleep() and finish_sleep() happens outside the lock: the sleeping thread
// polls wait_fd() and touches nothing else, while other threads may call any function.
//
// A message consists of a header and `nbytes` of payload. The headers of a channel
// arrive in the order of the sends; its payloads may arrive in any order. A small
// payload (eager) travels with its header. A large one stays with the sender until the
// receiver has accepted the message. So a message that nobody wants yet costs a header
// (and a bounded buffer, if the transport sends the start of the payload early), and
// never blocks another message.
//
// Failures, call by call:
//
//   constructor, channel()    throw std::invalid_argument for a wrong option or offer,
//                             and std::system_error if the system refuses a resource.
//   send(), send_to_many(),   do nothing on a channel that is lost, forgotten or
//   post()                    closing. Throw any std::exception if the system or the
//                             library below fails: the engine then fails the operation
//                             with Code::kInternal.
//   Incoming::accept(),       may throw as send() does.
//   consume()
//   poll(), forget(),         throw if the transport as a whole can no longer be used:
//   close(),                  the engine then fails all operations with kInternal, and
//   release_backend()         never polls this transport again.
//   everything else           must not throw.
//
// The failure of one peer is never an exception. poll() reports it by on_lost(), with
// Code::kPeerLost, the peer's rank, and a sentence for the user that names the link and
// says how it broke.

namespace bluecomm {

// A transport may cut a payload only at multiples of this, so that no element is cut.
inline constexpr std::size_t kChunkAlignment = 64;

// A transport sets `nbytes` to the length of the payload, and carries the envelope
// without reading it.
struct Header {
  std::uint64_t nbytes = 0;
  std::array<std::byte, 248> envelope{};
};
static_assert(sizeof(Header) == 256);

// A message that is being sent. Destroying it before the payload is released cancels
// the message: the transport no longer reads the payload (but see Lease), and the
// peer's Incoming never completes. The engine tells the peer why in a message of its
// own. An Outgoing may outlive its transport.
class Outgoing {
 public:
  Outgoing() = default;
  Outgoing(const Outgoing&) = delete;
  Outgoing& operator=(const Outgoing&) = delete;
  virtual ~Outgoing() = default;

  // Neither this process nor the peer will read the prefix [0, released()) of the
  // payload again. Never shrinks; equals nbytes once the message is done.
  virtual std::size_t released() const = 0;

  // Called only for a message of Channel::send_growing(): the prefix [0, nbytes) of the
  // payload is final and may be sent. A multiple of kChunkAlignment or the whole
  // payload, and never less than before.
  virtual void grow(std::size_t nbytes) { static_cast<void>(nbytes); }
};

// Keeps a payload's memory from being freed, for a transport that cannot stop reading
// the payload when its Outgoing is destroyed. The memory may be overwritten meanwhile.
// Belongs to the owner of the memory, who does not free it while has_tenants().
class Lease {
 public:
  Lease() = default;
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  // Returns a tenancy, which ends when the last copy of it is destroyed. A tenancy that
  // is leaked keeps the memory forever.
  std::shared_ptr<const void> take() {
    if (!held_) held_ = std::make_shared<const char>();
    return held_;
  }
  bool has_tenants() const { return held_.use_count() > 1; }

 private:
  std::shared_ptr<const void> held_;
};

// Memory that two processes (or ranks) share, and that this one may write, too. It
// stays mapped as long as `owner` lives.
struct SharedBytes {
  std::shared_ptr<void> owner;
  std::span<std::byte> bytes;
};

// A message whose header has arrived. Destroying it discards the rest of the payload.
// An Incoming may outlive its transport, and the bytes that it has shown stay readable.
class Incoming {
 public:
  Incoming() = default;
  Incoming(const Incoming&) = delete;
  Incoming& operator=(const Incoming&) = delete;
  virtual ~Incoming() = default;

  virtual const Header& header() const = 0;

  // Asks for the payload; called at most once. `into` is empty or as long as the
  // payload. If it is not empty, the transport may receive the bytes into it, and
  // readable() then points there; the caller keeps the memory until it destroys the
  // Incoming.
  virtual void accept(std::span<std::byte> into) = 0;

  // The next bytes of the payload in order, starting at offset consumed(). They end at
  // a multiple of kChunkAlignment or at the end of the payload, and may have any
  // alignment in memory. Valid until the next consume(). The next poll of the transport
  // may show more bytes, but never moves those already shown.
  virtual std::span<const std::byte> readable() const = 0;

  // Gives back the first `nbytes` of readable(): the sender may overwrite them. Has no
  // effect, so that consumed() stays the same, if the sender has cancelled the message
  // and these bytes may have changed while the caller read them.
  virtual void consume(std::size_t nbytes) = 0;
  virtual std::size_t consumed() const = 0;

  // Instead of accept(): returns the sender's own memory of the payload if this rank
  // can map it, otherwise nothing. The sender sees writes to this memory immediately,
  // as long as it keeps the memory. See Channel::shares_memory().
  virtual std::optional<SharedBytes> share() { return std::nullopt; }
};

// Counters of one connection, for a channel that consists of connections. The bytes
// include headers and framing.
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

// Counters of a channel. The bytes are those of payloads, without headers.
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
    // Streams may have been added since, but none is ever removed.
    for (std::size_t i = 0; i < before.streams.size(); ++i) {
      since.streams[i] = streams[i] - before.streams[i];
    }
    return since;
  }
};

// The packet losses of a path between machines.
struct PathLosses {
  std::uint64_t repeated = 0;  // packets
  std::chrono::milliseconds repeat_after{0};
};

// The link to one peer. It can be used before it is established: messages then wait.
class Channel {
 public:
  Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  virtual ~Channel() = default;

  virtual int peer() const = 0;

  // Starts a message. The caller keeps `payload` alive and unchanged until released()
  // has passed it or the Outgoing is destroyed. On a lost channel nothing is sent and
  // released() stays 0.
  virtual std::unique_ptr<Outgoing> send(const Header& header,
                                         std::span<const std::byte> payload) = 0;

  // Like send(), for a payload that may go to several peers. The caller passes the same
  // `copies`, null at first, to each of these sends: a transport that copies payloads
  // can keep its copies there, for the other sends to use. The caller frees the
  // payload's memory only when `lease` has no tenants.
  virtual std::unique_ptr<Outgoing> send_to_many(const Header& header,
                                                 std::span<const std::byte> payload,
                                                 std::shared_ptr<void>& copies,
                                                 Lease& lease) {
    static_cast<void>(copies);
    static_cast<void>(lease);
    return send(header, payload);
  }

  // Like send(), for a payload that is computed while it is sent: Outgoing::grow() says
  // how much of it is final, at first nothing. The bytes are sent in short pieces, so
  // that the peer can use the first ones while the others are on their way. Returns
  // null, and sends nothing, if the transport cannot do this for this payload.
  virtual std::unique_ptr<Outgoing> send_growing(const Header& header,
                                                 std::span<const std::byte> payload) {
    static_cast<void>(header);
    static_cast<void>(payload);
    return nullptr;
  }

  // How many bytes of send_growing() an operation should make final ahead of the bytes
  // that it receives. Depends on the present state of the network.
  static constexpr std::size_t kAnyLead = std::numeric_limits<std::size_t>::max();
  virtual std::size_t lead() const { return kAnyLead; }

  // Sends a copy of the payload, which is at most kMaxPost bytes. The message cannot be
  // cancelled.
  static constexpr std::size_t kMaxPost = 4096;
  virtual void post(const Header& header, std::span<const std::byte> payload) = 0;

  // Whether Incoming::share() works for payloads that lie in SharedMemory and are too
  // large to be eager.
  virtual bool shares_memory() const { return false; }

  virtual ChannelStats stats() const = 0;

  // Shows the peer that this process runs, at a lower cost than a message. Returns
  // false if the transport cannot do that now; the caller then posts a message.
  virtual bool beat() { return false; }
  // A number that changes whenever something has arrived from the peer, beats included.
  virtual std::uint64_t signs_of_life() const {
    const ChannelStats arrived = stats();
    return arrived.messages_received + arrived.bytes_received;
  }
  // The packets that this end of the path has sent again so far, and after how long it
  // does so. Asks the kernel.
  virtual PathLosses path_losses() const { return {}; }
};

// Receives what a transport reports from within poll(). The functions may call any
// function of the channels and messages of the transport.
class Receiver {
 public:
  virtual ~Receiver() = default;
  virtual void on_message(int peer, std::unique_ptr<Incoming> message) = 0;
  // The link broke, as `status` says, or the peer said goodbye and will send no more.
  // At most one of the two is called, once per peer; neither need be called if no
  // message has been sent either way. Messages that have arrived stay readable.
  virtual void on_lost(int peer, Status status) = 0;
  virtual void on_goodbye(int peer) = 0;
};

// A transport ends in three steps: close() says goodbye to the peers and refuses new
// messages, closed() tells when everything that was sent has been delivered, and the
// destructor frees everything immediately, whether delivered or not.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  // A short name such as "tcp", used in logs, tests and BLUECOMM_TRANSPORT.
  virtual std::string_view name() const = 0;

  // The address at which peers reach this rank. Published at the rendezvous; the engine
  // does not read it.
  virtual std::string offer() const = 0;

  // Whether this rank can exchange messages with `peer` over this transport. Both ranks
  // must find the same answer, because each of them chooses its transport alone. To be
  // overridden if an offer alone does not mean that the peer can be reached.
  virtual bool reaches(const Peer& peer) const {
    return peer.offers.contains(std::string(name()));
  }

  // Returns the channel to `peer`, whose offer() is `offer`, and makes it if necessary.
  // The transport owns the channel, and connects at the first message. The engine makes
  // the channels of all peers that may connect before it first polls.
  virtual Channel& channel(int peer, std::string_view offer) = 0;

  // Moves what can be moved now, and reports what has arrived. Returns true if anything
  // changed, so that the engine polls again before it sleeps.
  virtual bool poll(Receiver& receiver) = 0;

  // Whether poll() would send something now that other functions have queued since the
  // last poll(). For a transport that sends only within poll().
  virtual bool has_unsent() const { return false; }

  // A file descriptor that becomes readable when poll() may have something to do, after
  // prepare_sleep() has returned true. It stays the same. -1 if the transport has none:
  // then only next_timer() ends the sleep.
  virtual int wait_fd() const = 0;

  // Announces that this rank is about to sleep on wait_fd(). Returns false if poll()
  // has something to do already, so that the rank must not sleep. finish_sleep()
  // follows each call, whatever it returned.
  virtual bool prepare_sleep() = 0;
  virtual void finish_sleep() = 0;

  // The earliest time at which poll() must be called even if wait_fd() stays silent,
  // such as for retries and handshake deadlines; time_point::max() if there is none.
  virtual std::chrono::steady_clock::time_point next_timer() const = 0;

  // Drops the link to a peer whose process is dead or has finished, as the control
  // plane has reported. The end of the link is not reported.
  virtual void forget(int peer) = 0;

  virtual void close() = 0;
  virtual bool closed() const = 0;

  // Called when the program is about to finalize the library that carries the messages,
  // such as by MPI_Finalize. Tells the peers and stops using that library; may take a
  // tenth of a second. A transport without such a library does nothing.
  virtual void release_backend() {}

  // In a forked child: closes every file descriptor without notifying any peer. Called
  // with the progress lock held; afterwards, only destructors may be called.
  virtual void abandon_after_fork() noexcept = 0;
};

}  // namespace bluecomm
