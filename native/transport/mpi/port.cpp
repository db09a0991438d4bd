// The only file of the transport that calls MPI. It sends and receives frames and
// chunks, owns their memory until MPI has completed the requests, and hands over to the
// session the requests that MPI has not completed when the transport ends. Called under
// the progress lock. No call of MPI may follow MPI_Finalize, which another thread may
// call at any time: a function that starts a request calls check_finalized() first, and
// once that has returned true, requests are no longer tested.
#include "transport/mpi/port.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>

#include "common/never_free.h"

namespace bluecomm::mpi {
namespace {

// How long a port that ends waits for MPI to complete the requests under way.
constexpr std::chrono::milliseconds kLastMoves{100};

// Most sends of at most this length complete immediately.
constexpr std::size_t kShort = 4096;

std::uint64_t draw() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random();
}

std::shared_ptr<const void> shared(Buffer buffer) {
  return std::shared_ptr<std::byte[]>(std::move(buffer));
}

template <typename Number>
bool parse_number(std::string_view text, Number& number, int base) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, base);
  return error == std::errc{} && stop == end;
}

}  // namespace

std::string PortAddress::text() const {
  std::array<char, 16> digits;
  const auto end =
      std::to_chars(digits.data(), digits.data() + digits.size(), transport, 16).ptr;
  return std::to_string(rank) + "." + std::to_string(port) + "." +
         std::string(digits.data(), end);
}

PortAddress PortAddress::parse(std::string_view text, int ranks) {
  PortAddress address;
  const std::size_t first = text.find('.');
  const std::size_t second = first == text.npos ? text.npos : text.find('.', first + 1);
  if (second == text.npos || !parse_number(text.substr(0, first), address.rank, 10) ||
      !parse_number(text.substr(first + 1, second - first - 1), address.port, 10) ||
      !parse_number(text.substr(second + 1), address.transport, 16) ||
      address.rank < 0 || address.rank >= ranks || address.port < 1 ||
      address.port >= Session::kPorts) {
    throw std::invalid_argument(
        "expected the address RANK.PORT.NUMBER of an mpi transport with " +
        std::to_string(ranks) + " ranks, got '" + std::string(text) + "'");
  }
  return address;
}

Port::Port(std::shared_ptr<Session> session)
    : session_(std::move(session)),
      mpi_(session_->communicator()),
      address_{mpi_.rank(), session_->take_port(), draw()} {
  for (FrameReceive& one : receives_) {
    one.memory = frame_pool_.take();
    one.request = receive_frame(one.memory.get());
  }
}

Port::~Port() {
  // In a forked child, MPI's memory belongs to the parent. The child has a copy that
  // nothing writes to.
  if (forked_) return;
  try {
    if (check_finalized()) {
      leak_memory();
      return;
    }
    wait_for([this] { return frames_.empty() && abandoned_receives_.empty(); });
    abandon_all();
    if (!is_dirty_) session_->give_port(address_.port);
  } catch (const std::exception&) {
    // MPI has failed: nothing can be handed over to it, but it may still read.
    for (AbandonedSends& abandoned : abandoned_sends_)
      never_free(std::move(abandoned.lease));
  }
}

void Port::release_backend() {
  if (check_finalized()) return;
  wait_for([this] { return idle(); });
  abandon_all();
  wait_for([this] { return session_->poll_abandoned(); });
  finalized_ = true;
}

template <typename Condition>
void Port::wait_for(Condition done) {
  const auto deadline = std::chrono::steady_clock::now() + kLastMoves;
  while (!done() && std::chrono::steady_clock::now() < deadline) {
    const bool any = poll_requests();
    if (!progress() && !any) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

// Hands all requests under way to the session.
void Port::abandon_all() {
  for (AbandonedReceives& abandoned : abandoned_receives_)
    cancel_receives(std::move(abandoned.posted), abandoned.tag);
  abandoned_receives_.clear();
  for (std::size_t i = 0; i < receives_.size(); ++i) {
    if (holds_frame_ && i == next_receive_) continue;
    cancel(receives_[i].request, std::move(receives_[i].memory));
  }
  for (auto* sends : {&sends_, &frames_}) {
    for (BufferedSend& send : *sends) {
      abandon(send.id, shared(std::move(send.memory)));
    }
    sends->clear();
  }
  for (const AbandonedSends& abandoned : abandoned_sends_) {
    for (const ZeroCopySend& one : abandoned.sends) abandon(one.id, abandoned.lease);
  }
  abandoned_sends_.clear();
}

void Port::abandon(RequestSet::Id id, std::shared_ptr<const void> memory) {
  const std::optional<RequestHandle> request = requests_.release(id);
  if (request) session_->abandon(*request, std::move(memory));
}

// --- Frames --------------------------------------------------------------------------

RequestHandle Port::receive_frame(std::byte* into) {
  return mpi_.irecv({into, kMaxFrame}, kAnySource, address_.port * Session::kTags);
}

void Port::send_frame(const PortAddress& to, Frame frame,
                      std::span<const std::byte> header,
                      std::span<const std::byte> payload) {
  frame.to = to.transport;
  const std::size_t nbytes = sizeof frame + header.size() + payload.size();
  Buffer memory = frame_pool_.take();
  std::byte* at = memory.get();
  std::memcpy(at, &frame, sizeof frame);
  at = std::copy(header.begin(), header.end(), at + sizeof frame);
  std::copy(payload.begin(), payload.end(), at);
  send(to, to.port * Session::kTags, std::move(memory), nbytes, frame_pool_, frames_);
}

void Port::send(const PortAddress& to, int tag, Buffer memory, std::size_t nbytes,
                BufferPool& origin, std::deque<BufferedSend>& list) {
  if (check_finalized()) {
    origin.give(std::move(memory));
    return;
  }
  RequestHandle request = mpi_.isend({memory.get(), nbytes}, to.rank, tag);
  if (nbytes <= kShort && mpi_.test(request)) {
    origin.give(std::move(memory));
  } else {
    list.push_back({requests_.add(request), std::move(memory), &origin});
  }
}

std::span<const std::byte> Port::next_frame() {
  if (finalized_) return {};
  if (std::exchange(holds_frame_, false)) receive_next_frame();
  while (true) {
    FrameReceive& next = receives_[next_receive_];
    const std::optional<Completion> done = mpi_.test(next.request);
    if (!done) return {};
    Frame frame;
    if (done->nbytes >= sizeof frame) {
      std::memcpy(&frame, next.memory.get(), sizeof frame);
      if (frame.to == address_.transport) {
        holds_frame_ = true;
        return {next.memory.get(), done->nbytes};
      }
    }
    // The frame was sent to an earlier transport of this port.
    receive_next_frame();
  }
}

// Restarts the receive of the frame that has been read.
void Port::receive_next_frame() {
  FrameReceive& read = receives_[next_receive_];
  read.request = receive_frame(read.memory.get());
  next_receive_ = (next_receive_ + 1) % receives_.size();
}

Buffer Port::keep_frame() {
  return std::exchange(receives_[next_receive_].memory, frame_pool_.take());
}

// --- Chunks --------------------------------------------------------------------------

void Port::send_chunk(const PortAddress& to, int tag, Buffer chunk,
                      std::size_t nbytes) {
  send(to, tag, std::move(chunk), nbytes, chunk_pool_, sends_);
}

std::optional<RequestSet::Id> Port::send_zero_copy(const PortAddress& to, int tag,
                                                   std::span<const std::byte> bytes) {
  if (check_finalized()) return std::nullopt;
  return requests_.add(mpi_.isend(bytes, to.rank, tag));
}

std::optional<RequestSet::Id> Port::send_early(const PortAddress& to, int tag,
                                               std::span<const std::byte> bytes) {
  if (check_finalized()) return std::nullopt;
  return requests_.add(mpi_.issend(bytes, to.rank, tag));
}

bool Port::has_completed(RequestSet::Id id) {
  return !finalized_ && requests_.take(id).has_value();
}

void Port::abandon_sends(std::deque<ZeroCopySend> sends,
                         std::shared_ptr<const void> lease,
                         std::shared_ptr<const bool> is_lost) {
  if (sends.empty()) return;
  abandoned_sends_.push_back({std::move(sends), std::move(lease), std::move(is_lost)});
}

bool Port::idle() const {
  return finalized_ ||
         (sends_.empty() && frames_.empty() &&
          std::all_of(abandoned_sends_.begin(), abandoned_sends_.end(),
                      [](const AbandonedSends& one) { return *one.is_lost; }));
}

std::optional<int> Port::take_tag() {
  if (!free_tags_.empty()) {
    const int tag = free_tags_.back();
    free_tags_.pop_back();
    return tag;
  }
  if (tags_used_ == Session::kTags) return std::nullopt;
  return address_.port * Session::kTags + tags_used_++;
}

std::optional<int> Port::take_tags(int count) {
  if (tags_used_ + count > Session::kTags / 2) return std::nullopt;
  return address_.port * Session::kTags + std::exchange(tags_used_, tags_used_ + count);
}

ChunkReceive Port::receive_chunk(const PortAddress& from, int tag, std::size_t nbytes,
                                 bool may_be_there) {
  ChunkReceive posted{{}, chunk_pool_.take(), nbytes};
  if (check_finalized()) return posted;
  RequestHandle request = mpi_.irecv({posted.memory.get(), nbytes}, from.rank, tag);
  const std::optional<Completion> done =
      may_be_there ? mpi_.test(request) : std::nullopt;
  posted.id = done ? requests_.add_completed(*done) : requests_.add(request);
  return posted;
}

std::optional<Completion> Port::test(ChunkReceive& posted) {
  if (finalized_ || !posted.id) return std::nullopt;
  return requests_.take(*posted.id);
}

void Port::drain_later(std::deque<ChunkReceive> posted, int tag) {
  abandoned_receives_.push_back({std::move(posted), tag});
}

void Port::cancel_receives(std::deque<ChunkReceive> posted, int tag) {
  if (posted.empty()) {
    if (tag >= 0) give_tag(tag);
    return;
  }
  // Messages may still arrive under the tag, so it is not used again.
  for (ChunkReceive& one : posted) {
    if (check_finalized()) {
      never_free(std::move(one.memory));  // see leak_memory()
    } else if (const std::optional<RequestHandle> request =
                   requests_.release(*one.id)) {
      is_dirty_ = true;
      cancel(*request, std::move(one.memory));
    }
  }
}

void Port::cancel(RequestHandle request, Buffer memory) {
  mpi_.cancel(request);
  session_->abandon(request, shared(std::move(memory)));
}

bool Port::check_finalized() {
  finalized_ = finalized_ || session_->library().finalized();
  return finalized_;
}

// Leaks all memory that MPI, which another thread is finalizing, may still use.
void Port::leak_memory() {
  for (AbandonedReceives& abandoned : abandoned_receives_)
    cancel_receives(std::move(abandoned.posted), abandoned.tag);
  for (FrameReceive& one : receives_) never_free(std::move(one.memory));
  for (auto* sends : {&sends_, &frames_}) {
    for (BufferedSend& send : *sends) never_free(std::move(send.memory));
  }
  for (AbandonedSends& abandoned : abandoned_sends_)
    never_free(std::move(abandoned.lease));
}

bool Port::progress() {
  if (finalized_) return false;
  bool any = poll_sends(frames_);
  any |= poll_sends(sends_);
  any |= poll_abandoned_sends();
  any |= poll_abandoned_receives();
  return any;
}

bool Port::poll_sends(std::deque<BufferedSend>& sends) {
  const std::size_t before = sends.size();
  std::erase_if(sends, [this](BufferedSend& send) {
    if (!requests_.take(send.id)) return false;
    send.origin->give(std::move(send.memory));
    return true;
  });
  return sends.size() < before;
}

bool Port::poll_abandoned_sends() {
  const std::size_t before = abandoned_sends_.size();
  std::erase_if(abandoned_sends_, [this](AbandonedSends& abandoned) {
    std::erase_if(abandoned.sends,
                  [this](ZeroCopySend& one) { return has_completed(one.id); });
    return abandoned.sends.empty();
  });
  return abandoned_sends_.size() < before;
}

bool Port::poll_abandoned_receives() {
  const std::size_t before = abandoned_receives_.size();
  std::erase_if(abandoned_receives_, [this](AbandonedReceives& abandoned) {
    while (!abandoned.posted.empty() && test(abandoned.posted.front())) {
      chunk_pool_.give(std::move(abandoned.posted.front().memory));
      abandoned.posted.pop_front();
    }
    if (!abandoned.posted.empty()) return false;
    if (abandoned.tag >= 0) give_tag(abandoned.tag);
    return true;
  });
  return abandoned_receives_.size() < before;
}

}  // namespace bluecomm::mpi
