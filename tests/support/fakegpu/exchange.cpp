// Moves messages between the ranks of a communicator: each receive grants one send, so
// that a send without its receive waits, as on a GPU. Runs on the threads of streams.
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <sstream>

#include "comm.h"
#include "report.h"

namespace fakegpu {
namespace {

constexpr int kPollMs = 10;  // how often an operation looks for the abort

std::string describe(const MessageKey& key) {
  static const char* const kNames[] = {"ncclSend/ncclRecv", "ncclAllReduce",
                                       "ncclReduce",        "ncclBroadcast",
                                       "ncclAllGather",     "ncclReduceScatter",
                                       "ncclCommSplit",     "ncclCommWindowRegister"};
  std::ostringstream text;
  text << kNames[key.operation] << " of " << key.count << " items of type " << key.type;
  if (key.operation == 0) return text.str();
  text << ", reduction " << key.reduction << ", root " << key.root << ", number "
       << key.number;
  return text.str();
}

// The messages that one peer still has to send and receive in this exchange.
struct Lane {
  struct Part {
    std::vector<std::byte> header;
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
    std::size_t sent = 0;  // of header and data together
  };

  std::deque<Message> sends;  // that wait for a grant
  std::deque<Message> receives;
  std::size_t received = 0;  // of the first receive
  bool is_receiving = false;
  std::deque<Part> outgoing;

  bool is_done() const { return sends.empty() && receives.empty() && outgoing.empty(); }
};

class Exchange {
 public:
  Exchange(FakeComm& comm, const std::vector<Message>& messages)
      : comm_(comm), lanes_(comm.peers.size()) {
    for (const Message& message : messages) {
      Lane& lane = lanes_.at(static_cast<std::size_t>(message.peer));
      if (message.is_send) {
        lane.sends.push_back(message);
      } else {
        lane.receives.push_back(message);
        queue(lane, {Frame::kGrant, 0, message.key, 0}, nullptr);
      }
    }
  }

  bool run() {
    copy_own();
    while (!comm_.aborted) {
      bool is_done = true;
      for (std::size_t i = 0; i < lanes_.size(); ++i) {
        if (static_cast<int>(i) == comm_.rank) continue;
        if (!advance(i)) return false;
        is_done = is_done && lanes_[i].is_done();
      }
      if (is_done) return true;
      wait();
    }
    return false;
  }

 private:
  static void queue(Lane& lane, const Frame& frame, const std::byte* data) {
    Lane::Part part;
    part.header.resize(sizeof frame);
    std::memcpy(part.header.data(), &frame, sizeof frame);
    part.data = data;
    part.bytes = frame.bytes;
    lane.outgoing.push_back(std::move(part));
  }

  // Messages of this rank to itself; ncclGroupEnd has checked that they match.
  void copy_own() {
    Lane& own = lanes_.at(static_cast<std::size_t>(comm_.rank));
    for (std::size_t i = 0; i < own.sends.size() && i < own.receives.size(); ++i) {
      std::memmove(own.receives[i].data, own.sends[i].data, own.sends[i].bytes);
    }
    own = {};
  }

  bool advance(std::size_t i) {
    Lane& lane = lanes_[i];
    Peer& peer = comm_.peers[i];
    if (!read(i)) return false;
    while (!lane.sends.empty() && !peer.grants.empty()) {
      const Message& send = lane.sends.front();
      if (!agree(i, send.key, peer.grants.front())) return false;
      queue(lane, {Frame::kData, 0, send.key, send.bytes}, send.data);
      lane.sends.pop_front();
      peer.grants.pop_front();
    }
    write(i);
    if (!peer.is_lost || lane.is_done()) return true;
    return lost(i);
  }

  bool agree(std::size_t i, const MessageKey& ours, const MessageKey& theirs) {
    if (ours == theirs) return true;
    const std::string text = "rank " + std::to_string(comm_.rank) + " has " +
                             describe(ours) + ", but rank " + std::to_string(i) +
                             " has " + describe(theirs);
    violation("ncclComm", text);
    set_error(comm_, kNcclInternal, text);
    return false;
  }

  bool lost(std::size_t i) {
    if (!settings().remote_errors) return true;  // waits for the abort
    set_error(comm_, kNcclRemote, "rank " + std::to_string(i) + " is gone");
    return false;
  }

  bool read(std::size_t i) {
    Lane& lane = lanes_[i];
    Peer& peer = comm_.peers[i];
    while (!peer.is_lost) {
      if (lane.is_receiving) {
        Message& receive = lane.receives.front();
        if (!read_some(peer, receive.data, receive.bytes, lane.received)) return true;
        lane.is_receiving = false;
        lane.receives.pop_front();
      } else {
        auto* const bytes = reinterpret_cast<std::byte*>(&peer.frame);
        if (!read_some(peer, bytes, sizeof(Frame), peer.frame_bytes)) return true;
        peer.frame_bytes = 0;
        if (peer.frame.kind == Frame::kGrant) {
          peer.grants.push_back(peer.frame.key);
        } else if (peer.frame.kind == Frame::kGoodbye) {
          peer.said_goodbye = true;
        } else if (!begin_data(i)) {
          return false;
        }
      }
    }
    return true;
  }

  bool begin_data(std::size_t i) {
    Lane& lane = lanes_[i];
    const Frame& frame = comm_.peers[i].frame;
    if (lane.receives.empty()) {
      set_error(comm_, kNcclInternal, "data of an operation that has failed");
      return false;
    }
    if (!agree(i, lane.receives.front().key, frame.key)) return false;
    lane.received = 0;
    lane.is_receiving = true;
    return true;
  }

  // Returns whether all `bytes` are there.
  static bool read_some(Peer& peer, std::byte* to, std::size_t bytes,
                        std::size_t& done) {
    while (done < bytes) {
      const ssize_t got = recv(peer.fd.get(), to + done, bytes - done, MSG_DONTWAIT);
      if (got > 0) {
        done += static_cast<std::size_t>(got);
      } else if (got < 0 && errno == EINTR) {
        continue;
      } else {
        if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) peer.is_lost = true;
        return false;
      }
    }
    return true;
  }

  void write(std::size_t i) {
    Lane& lane = lanes_[i];
    Peer& peer = comm_.peers[i];
    while (!lane.outgoing.empty() && !peer.is_lost) {
      Lane::Part& part = lane.outgoing.front();
      const std::size_t header = part.header.size();
      const bool in_header = part.sent < header;
      const std::byte* const from =
          in_header ? part.header.data() + part.sent : part.data + (part.sent - header);
      const std::size_t left =
          in_header ? header - part.sent : header + part.bytes - part.sent;
      const ssize_t put = send(peer.fd.get(), from, left, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) {
        // An end that is closed is noticed by the next read, after what it still sent.
        return;
      }
      part.sent += static_cast<std::size_t>(put);
      if (part.sent == header + part.bytes) lane.outgoing.pop_front();
    }
  }

  void wait() {
    std::vector<pollfd> waits;
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      const Peer& peer = comm_.peers[i];
      if (lanes_[i].is_done() || peer.is_lost) continue;
      const bool is_full = !lanes_[i].outgoing.empty();
      waits.push_back(
          {peer.fd.get(), static_cast<short>(POLLIN | (is_full ? POLLOUT : 0)), 0});
    }
    poll(waits.data(), waits.size(), kPollMs);
  }

  FakeComm& comm_;
  std::vector<Lane> lanes_;
};

}  // namespace

void set_error(FakeComm& comm, ncclResult_t error, const std::string& text) {
  const std::scoped_lock lock(comm.mutex);
  if (comm.error == kNcclSuccess) {
    comm.error = error;
    comm.error_text = text;
  }
  comm.changed.notify_all();
}

bool exchange_messages(FakeComm& comm, const std::vector<Message>& messages) {
  const std::scoped_lock lock(comm.peers_mutex);
  return Exchange(comm, messages).run();
}

void look_for_lost_peers(FakeComm& comm) {
  const std::unique_lock lock(comm.peers_mutex, std::try_to_lock);
  if (!lock.owns_lock() || !settings().remote_errors || comm.aborted) return;
  if (comm.peers.empty()) return;  // its ranks have not met
  // An exchange of nothing reads the frames that have arrived.
  Exchange(comm, {}).run();
  for (std::size_t i = 0; i < comm.peers.size(); ++i) {
    const Peer& peer = comm.peers[i];
    if (peer.is_lost && !peer.said_goodbye) {
      set_error(comm, kNcclRemote, "rank " + std::to_string(i) + " is gone");
    }
  }
}

void say_goodbye(FakeComm& comm) {
  const std::scoped_lock lock(comm.peers_mutex);
  const Frame frame{Frame::kGoodbye, 0, {}, 0};
  for (Peer& peer : comm.peers) {
    if (peer.fd) send(peer.fd.get(), &frame, sizeof frame, MSG_DONTWAIT | MSG_NOSIGNAL);
    peer.fd.reset();
  }
}

}  // namespace fakegpu
