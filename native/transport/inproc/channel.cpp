#include "transport/inproc/channel.h"

#include <string>
#include <utility>

namespace bluecomm::inproc {

InprocChannel::InprocChannel(std::shared_ptr<Hub> hub, int rank, int peer)
    : hub_(std::move(hub)),
      rank_(rank),
      peer_(peer),
      outbox_(hub_, rank, peer),
      inbox_(hub_) {}

std::unique_ptr<Outgoing> InprocChannel::send(const Header& header,
                                              std::span<const std::byte> payload) {
  return outbox_.send(header, payload);
}

void InprocChannel::post(const Header& header, std::span<const std::byte> payload) {
  outbox_.post(header, payload);
}

ChannelStats InprocChannel::stats() const {
  ChannelStats stats;
  stats.messages_sent = outbox_.messages();
  stats.bytes_sent = outbox_.nbytes();
  stats.messages_received = inbox_.messages();
  stats.bytes_received = inbox_.nbytes();
  return stats;
}

bool InprocChannel::beat() {
  const LockGuard lock(hub_->mutex);
  if (hub_->link(rank_, peer_) != LinkState::kCut) ++hub_->beats(rank_, peer_);
  return true;
}

std::uint64_t InprocChannel::signs_of_life() const {
  const LockGuard lock(hub_->mutex);
  return inbox_.messages() + hub_->beats(peer_, rank_);
}

void InprocChannel::dispatch(InprocEvent event, Receiver& receiver) {
  switch (event.type) {
    case InprocEvent::Type::kMessage:
      receiver.on_message(peer_, inbox_.take(std::move(event.message)));
      return;
    case InprocEvent::Type::kLost:
      if (std::exchange(reported_end_, true)) return;
      receiver.on_lost(peer_, std::move(event.status));
      return;
    case InprocEvent::Type::kGoodbye:
      if (!std::exchange(reported_end_, true)) receiver.on_goodbye(peer_);
      return;
  }
}

void InprocChannel::drop(const std::string& text) {
  const LockGuard lock(hub_->mutex);
  hub_->break_link(rank_, peer_, text);
}

void InprocChannel::forget() {
  reported_end_ = true;
  drop("rank " + std::to_string(rank_) + " dropped the link");
}

}  // namespace bluecomm::inproc
