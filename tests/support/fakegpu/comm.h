// A communicator of the fake NCCL: one socket to each other rank, and operations that
// exchange messages over them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/fd.h"
#include "nccl_abi.h"

namespace fakegpu {

// The properties of a message on which both ends must agree.
struct MessageKey {
  std::uint32_t operation;
  std::int32_t type;
  std::int32_t reduction;
  std::int32_t root;
  std::uint64_t count;
  // How many collective operations came before; 0 for sends and receives.
  std::uint64_t number;

  bool operator==(const MessageKey&) const = default;
};

struct Frame {
  enum Kind : std::uint32_t { kGrant = 1, kData = 2, kGoodbye = 3 };

  std::uint32_t kind;
  std::uint32_t padding;
  MessageKey key;
  std::uint64_t bytes;
};

struct Peer {
  bluecomm::UniqueFd fd;
  std::deque<MessageKey> grants;  // receives that the peer has posted
  Frame frame;                    // the one that arrives now
  std::size_t frame_bytes = 0;
  bool said_goodbye = false;
  bool is_lost = false;
};

// One message of an exchange.
struct Message {
  int peer;
  bool is_send;
  std::byte* data;
  std::size_t bytes;
  MessageKey key;
};

struct OneSided;

enum class CommState { kBusy, kReady, kFinalized, kDestroyed, kAborted };

}  // namespace fakegpu

struct FakeComm {
  int rank = 0;
  int size = 1;
  int device = 0;
  bool is_blocking = true;

  std::mutex mutex;
  std::condition_variable changed;
  fakegpu::CommState state = fakegpu::CommState::kBusy;
  ncclResult_t error = fakegpu::kNcclSuccess;
  std::string error_text;
  std::atomic<bool> aborted = false;
  std::atomic<bool> in_call = false;

  // Operations run one at a time, in the order in which they were issued.
  std::uint64_t tickets = 0;
  std::uint64_t served = 0;
  int late_launches = 0;  // groups that another thread has yet to submit
  std::uint64_t collectives = 0;
  std::map<int, double> scales;  // of reductions made by PreMulSum
  int next_reduction = 100;

  std::mutex peers_mutex;  // held while an operation runs
  std::vector<fakegpu::Peer> peers;

  // The state of one-sided puts; null before the first window.
  std::shared_ptr<fakegpu::OneSided> one_sided;
};

namespace fakegpu {

// Sets the error that ncclCommGetAsyncError returns, unless there is one.
void set_error(FakeComm& comm, ncclResult_t error, const std::string& text);

// Sends and receives all messages at once; those to one peer in their order. A send
// waits for the peer's receive. Returns false if the communicator is aborted or failed;
// the error is set then.
bool exchange_messages(FakeComm& comm, const std::vector<Message>& messages);

// Notices peers that are gone. Does nothing while an operation runs.
void look_for_lost_peers(FakeComm& comm);

// Tells the peers that this rank leaves in order.
void say_goodbye(FakeComm& comm);

}  // namespace fakegpu
