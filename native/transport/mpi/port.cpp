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

// How long the end waits for MPI to take over what is under way.
constexpr std::chrono::milliseconds kLastMoves{100};

// MPI has taken messages of this length when it has started to send them, mostly.
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

std::string Address::text() const {
  std::array<char, 16> digits;
  const auto end =
      std::to_chars(digits.data(), digits.data() + digits.size(), transport, 16).ptr;
  return std::to_string(rank) + "." + std::to_string(port) + "." +
         std::string(digits.data(), end);
}

Address Address::parse(std::string_view text, int ranks) {
  Address address;
  const std::size_t first = text.find('.');
  const std::size_t second = first == text.npos ? text.npos : text.find('.', first + 1);
  if (second == text.npos || !parse_number(text.substr(0, first), address.rank, 10) ||
      !parse_number(text.substr(first + 1, second - first - 1), address.port, 10) ||
      !parse_number(text.substr(second + 1), address.transport, 16) ||
      address.rank < 0 || address.rank >= ranks || address.port < 1 ||
      address.port >= Session::kPorts) {
    throw std::invalid_argument("expected RANK.PORT.NUMBER of an mpi transport, with " +
                                std::to_string(ranks) + " ranks: '" +
                                std::string(text) + "'");
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
  // In a forked child MPI's memory is the parent's; the child has a copy that nothing
  // writes to.
  if (abandoned_) return;
  try {
    if (look_for_end()) {
      leave_memory();
      return;
    }
    wait_for([this] { return frames_.empty() && orphans_.empty(); });
    bury_all();
    if (!is_dirty_) session_->give_port(address_.port);
  } catch (const std::exception&) {
    // MPI has failed: there is nothing to hand over to it. It may still read.
    for (Left& left : left_) never_free(std::move(left.lease));
  }
}

void Port::end() {
  if (look_for_end()) return;
  wait_for([this] { return idle(); });
  bury_all();
  wait_for([this] { return session_->look_at_buried(); });
  has_ended_ = true;
}

template <typename Done>
void Port::wait_for(Done done) {
  const auto deadline = std::chrono::steady_clock::now() + kLastMoves;
  while (!done() && std::chrono::steady_clock::now() < deadline) {
    const bool any = look();
    if (!progress() && !any) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

// Leaves to the session what is under way.
void Port::bury_all() {
  for (Orphan& orphan : orphans_) drop(std::move(orphan.posted), orphan.tag);
  orphans_.clear();
  for (std::size_t i = 0; i < receives_.size(); ++i) {
    if (holds_frame_ && i == next_receive_) continue;
    cancel(receives_[i].request, std::move(receives_[i].memory));
  }
  for (auto* sends : {&sends_, &frames_}) {
    for (Send& send : *sends) {
      bury(send.id, shared(std::move(send.memory)));
    }
    sends->clear();
  }
  for (const Left& left : left_) {
    for (const Given& one : left.given) bury(one.id, left.lease);
  }
  left_.clear();
}

void Port::bury(Requests::Id id, std::shared_ptr<const void> memory) {
  const std::optional<Request> request = requests_.release(id);
  if (request) session_->bury(*request, std::move(memory));
}

// --- Frames --------------------------------------------------------------------------

Request Port::receive_frame(std::byte* into) {
  return mpi_.irecv({into, kMaxFrame}, kAnySource, address_.port * Session::kTags);
}

void Port::send_frame(const Address& to, Frame frame, std::span<const std::byte> header,
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

void Port::send(const Address& to, int tag, Buffer memory, std::size_t nbytes,
                Pool& origin, std::deque<Send>& list) {
  if (look_for_end()) {
    origin.give(std::move(memory));
    return;
  }
  Request request = mpi_.isend({memory.get(), nbytes}, to.rank, tag);
  if (nbytes <= kShort && mpi_.test(request)) {
    origin.give(std::move(memory));
  } else {
    list.push_back({requests_.add(request), std::move(memory), &origin});
  }
}

std::span<const std::byte> Port::next_frame() {
  if (has_ended_) return {};
  if (std::exchange(holds_frame_, false)) receive_next_frame();
  while (true) {
    FrameReceive& next = receives_[next_receive_];
    const std::optional<Done> done = mpi_.test(next.request);
    if (!done) return {};
    Frame frame;
    if (done->nbytes >= sizeof frame) {
      std::memcpy(&frame, next.memory.get(), sizeof frame);
      if (frame.to == address_.transport) {
        holds_frame_ = true;
        return {next.memory.get(), done->nbytes};
      }
    }
    // To an earlier transport of this port.
    receive_next_frame();
  }
}

// In the place of the one that was read.
void Port::receive_next_frame() {
  FrameReceive& read = receives_[next_receive_];
  read.request = receive_frame(read.memory.get());
  next_receive_ = (next_receive_ + 1) % receives_.size();
}

Buffer Port::keep_frame() {
  return std::exchange(receives_[next_receive_].memory, frame_pool_.take());
}

// --- Chunks --------------------------------------------------------------------------

void Port::send_chunk(const Address& to, int tag, Buffer chunk, std::size_t nbytes) {
  send(to, tag, std::move(chunk), nbytes, chunk_pool_, sends_);
}

std::optional<Requests::Id> Port::send_straight(const Address& to, int tag,
                                                std::span<const std::byte> bytes) {
  if (look_for_end()) return std::nullopt;
  return requests_.add(mpi_.isend(bytes, to.rank, tag));
}

std::optional<Requests::Id> Port::send_early(const Address& to, int tag,
                                             std::span<const std::byte> bytes) {
  if (look_for_end()) return std::nullopt;
  return requests_.add(mpi_.issend(bytes, to.rank, tag));
}

bool Port::is_over(Requests::Id id) {
  return !has_ended_ && requests_.take(id).has_value();
}

void Port::leave(std::deque<Given> given, std::shared_ptr<const void> lease,
                 std::shared_ptr<const bool> is_lost) {
  if (given.empty()) return;
  left_.push_back({std::move(given), std::move(lease), std::move(is_lost)});
}

bool Port::idle() const {
  return has_ended_ || (sends_.empty() && frames_.empty() &&
                        std::all_of(left_.begin(), left_.end(),
                                    [](const Left& one) { return *one.is_lost; }));
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

Posted Port::receive_chunk(const Address& from, int tag, std::size_t nbytes,
                           bool may_be_there) {
  Posted posted{{}, chunk_pool_.take(), nbytes};
  if (look_for_end()) return posted;
  Request request = mpi_.irecv({posted.memory.get(), nbytes}, from.rank, tag);
  const std::optional<Done> done = may_be_there ? mpi_.test(request) : std::nullopt;
  posted.id = done ? requests_.add_ended(*done) : requests_.add(request);
  return posted;
}

std::optional<Done> Port::test(Posted& posted) {
  if (has_ended_ || !posted.id) return std::nullopt;
  return requests_.take(*posted.id);
}

void Port::finish_later(std::deque<Posted> posted, int tag) {
  orphans_.push_back({std::move(posted), tag});
}

void Port::drop(std::deque<Posted> posted, int tag) {
  if (posted.empty()) {
    if (tag >= 0) give_tag(tag);
    return;
  }
  // Its messages may still come: the tag is not used again.
  for (Posted& one : posted) {
    if (look_for_end()) {
      never_free(std::move(one.memory));  // see leave_memory()
    } else if (const std::optional<Request> request = requests_.release(*one.id)) {
      is_dirty_ = true;
      cancel(*request, std::move(one.memory));
    }
  }
}

void Port::cancel(Request request, Buffer memory) {
  mpi_.cancel(request);
  session_->bury(request, shared(std::move(memory)));
}

bool Port::look_for_end() {
  has_ended_ = has_ended_ || session_->library().finalized();
  return has_ended_;
}

// MPI, which is ending on another thread, may still use it.
void Port::leave_memory() {
  for (Orphan& orphan : orphans_) drop(std::move(orphan.posted), orphan.tag);
  for (FrameReceive& one : receives_) never_free(std::move(one.memory));
  for (auto* sends : {&sends_, &frames_}) {
    for (Send& send : *sends) never_free(std::move(send.memory));
  }
  for (Left& left : left_) never_free(std::move(left.lease));
}

bool Port::progress() {
  if (has_ended_) return false;
  bool any = end_sends(frames_);
  any |= end_sends(sends_);
  any |= end_left();
  any |= end_orphans();
  return any;
}

bool Port::end_sends(std::deque<Send>& sends) {
  const std::size_t before = sends.size();
  std::erase_if(sends, [this](Send& send) {
    if (!requests_.take(send.id)) return false;
    send.origin->give(std::move(send.memory));
    return true;
  });
  return sends.size() < before;
}

bool Port::end_left() {
  const std::size_t before = left_.size();
  std::erase_if(left_, [this](Left& left) {
    std::erase_if(left.given, [this](Given& one) { return is_over(one.id); });
    return left.given.empty();
  });
  return left_.size() < before;
}

bool Port::end_orphans() {
  const std::size_t before = orphans_.size();
  std::erase_if(orphans_, [this](Orphan& orphan) {
    while (!orphan.posted.empty() && test(orphan.posted.front())) {
      chunk_pool_.give(std::move(orphan.posted.front().memory));
      orphan.posted.pop_front();
    }
    if (!orphan.posted.empty()) return false;
    if (orphan.tag >= 0) give_tag(orphan.tag);
    return true;
  });
  return orphans_.size() < before;
}

}  // namespace bluecomm::mpi
