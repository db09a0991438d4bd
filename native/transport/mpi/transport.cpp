// The mpi transport: polls the port for frames and completed requests, and passes them
// to the channels. The leader of the engine calls it under the progress lock. It has
// no descriptor to sleep on, so next_timer() returns when to poll again.
#include "transport/mpi/transport.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace bluecomm {
namespace {

// poll() checks other requests after this many frames.
constexpr int kFramesInTurn = 64;

MpiOptions checked(MpiOptions options) {
  if (!options.session) {
    throw std::invalid_argument("mpi: expected a session with MPI, got none");
  }
  options.eager_bytes = std::min(options.eager_bytes, mpi::kMaxEager);
  return options;
}

}  // namespace

MpiTransport::MpiTransport(MpiOptions options)
    : options_(checked(std::move(options))),
      port_(options_.session),
      last_poll_(Clock::now()),
      last_change_(last_poll_) {}

MpiTransport::~MpiTransport() {
  if (port_.forked()) return;
  try {
    for (const auto& [peer, channel] : channels_)
      channel->announce_drop(mpi::DropReason::kDropped);
  } catch (const std::exception&) {
    // MPI has failed, so the peers cannot be told.
  }
}

Channel& MpiTransport::channel(int peer, std::string_view offer) {
  const auto found = channels_.find(peer);
  if (found != channels_.end()) return *found->second;
  const mpi::PortAddress address = mpi::PortAddress::parse(offer, port_.ranks());
  auto channel = std::make_unique<mpi::MpiChannel>(port_, options_.rank, peer, address,
                                                   options_.eager_bytes);
  return *channels_.emplace(peer, std::move(channel)).first->second;
}

bool MpiTransport::take_frame() {
  const std::span<const std::byte> bytes = port_.next_frame();
  if (bytes.empty()) return false;
  mpi::Frame frame;
  std::memcpy(&frame, bytes.data(), sizeof frame);
  const auto found = channels_.find(frame.from);
  if (found != channels_.end()) {
    found->second->take(frame, bytes.subspan(sizeof frame));
  }
  return true;
}

// Takes one frame and reports it before calling MPI again, because a call that finds
// nothing may cost a time slice of the core. This also reports the end of a link before
// its consequences.
bool MpiTransport::poll_mpi() {
  const bool has_frame = take_frame();
  if (has_frame && ++frames_ < kFramesInTurn) return true;
  frames_ = 0;
  return port_.poll_requests() || has_frame;
}

bool MpiTransport::poll(Receiver& receiver) {
  if (channels_.empty()) return false;  // all ranks are reached over other transports
  bool changed = false;
  if (port_.check_finalized()) {
    for (const auto& [peer, channel] : channels_) channel->on_finalized();
  } else {
    changed = poll_mpi();
    changed |= port_.progress();
    for (const auto& [peer, channel] : channels_) changed |= channel->advance();
  }
  // Reports only after all channels have advanced, because the receiver may call any
  // function of any channel.
  for (const auto& [peer, channel] : channels_) changed |= channel->report(receiver);
  last_poll_ = Clock::now();
  if (changed) last_change_ = last_poll_;
  return changed;
}

bool MpiTransport::prepare_sleep() {
  const bool has_room = port_.has_room();
  return std::none_of(
      channels_.begin(), channels_.end(),
      [has_room](const auto& entry) { return entry.second->busy(has_room); });
}

MpiTransport::Clock::time_point MpiTransport::next_timer() const {
  if (channels_.empty()) return Clock::time_point::max();
  const Clock::duration idle = last_poll_ - last_change_;
  if (idle < kAwake) return last_poll_;
  return last_poll_ + std::min<Clock::duration>(idle / 4, kLongestNap);
}

void MpiTransport::forget(int peer) {
  const auto found = channels_.find(peer);
  if (found != channels_.end()) found->second->forget();
}

void MpiTransport::close() {
  for (const auto& [peer, channel] : channels_) channel->close();
}

void MpiTransport::release_backend() {
  for (const auto& [peer, channel] : channels_) channel->release_backend();
  port_.release_backend();
}

bool MpiTransport::closed() const {
  return port_.idle() &&
         std::all_of(channels_.begin(), channels_.end(),
                     [](const auto& entry) { return entry.second->closed(); });
}

}  // namespace bluecomm
