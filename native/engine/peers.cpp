#include "engine/peers.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace bluecomm {

Peers::Peers(int rank, int size, std::string machine)
    : rank_(rank),
      machine_(std::move(machine)),
      entries_(static_cast<std::size_t>(size)),
      channels_(static_cast<std::size_t>(size), nullptr) {
  for (int r = 0; r < size; ++r) entry(r).peer.rank = r;
}

void Peers::connect(std::vector<Peer> peers,
                    std::span<const std::unique_ptr<Transport>> transports) {
  for (Peer& peer : peers) {
    const int rank = peer.rank;
    if (rank < 0 || rank >= size()) {
      throw std::invalid_argument("rank " + std::to_string(rank) + " is not in 0 .. " +
                                  std::to_string(size() - 1));
    }
    entry(rank).peer = std::move(peer);
    if (rank == rank_) continue;
    const Peer& known = entry(rank).peer;
    const auto transport =
        std::find_if(transports.begin(), transports.end(),
                     [&](const auto& one) { return one->reaches(known); });
    if (transport == transports.end()) {
      std::string text = "no transport reaches " + describe_process(rank) +
                         " from rank " + std::to_string(rank_) +
                         "; the transports are:";
      for (const auto& one : transports) text.append(" ").append(one->name());
      throw std::invalid_argument(text);
    }
    const std::string& offer = known.offers.at(std::string((*transport)->name()));
    entry(rank).transport = transport->get();
    channels_[static_cast<std::size_t>(rank)] = &(*transport)->channel(rank, offer);
  }
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == rank_ || channels_[static_cast<std::size_t>(rank)] != nullptr) continue;
    throw std::invalid_argument("the list of peers lacks rank " + std::to_string(rank));
  }
}

void Peers::disconnect() {
  channels_.assign(channels_.size(), nullptr);
  for (Entry& one : entries_) one.transport = nullptr;
}

bool Peers::is_peer(int rank) const {
  return rank >= 0 && rank < size() && rank != rank_;
}

std::string_view Peers::transport_of(int rank) const {
  if (rank == rank_) return "self";
  const Transport* const transport = entry(rank).transport;
  return transport == nullptr ? "none" : transport->name();
}

int Peers::ranks_here() const {
  return static_cast<int>(
      std::count_if(entries_.begin(), entries_.end(),
                    [&](const Entry& one) { return is_here(one.peer.rank); }));
}

std::string Peers::describe_rank(int rank) const {
  std::string text = "rank " + std::to_string(rank);
  const std::string& host = entry(rank).peer.host;
  return host.empty() ? text : text + " (" + host + ")";
}

std::string Peers::describe_process(int rank) const {
  const Peer& peer = entry(rank).peer;
  std::string text = "rank " + std::to_string(rank);
  if (!peer.host.empty()) text += " on " + peer.host;
  return peer.pid == 0 ? text : text + " (pid " + std::to_string(peer.pid) + ")";
}

bool Peers::mark_gone(int rank, State state) {
  Entry& gone = entry(rank);
  if (gone.state == State::kAlive) gone_.push_back(rank);
  if (gone.state == state) return false;
  gone.state = state;
  return true;
}

bool Peers::lose(int rank, std::string text) {
  if (!alive(rank)) return false;
  mark_gone(rank, State::kLost);
  Entry& lost = entry(rank);
  if (!lost.explained) {
    lost.reason = "the link to " + describe_process(rank) + " broke: " + text;
    lost.grace_until = Clock::now() + kGrace;
  }
  return true;
}

bool Peers::finish(int rank) {
  if (!alive(rank)) return false;
  mark_gone(rank, State::kFinished);
  Entry& finished = entry(rank);
  finished.reason = describe_process(rank) +
                    " has ended its communication (bluecomm.shutdown, or the end of "
                    "its program)";
  finished.grace_until = Clock::now() + kFinishedGrace;
  return true;
}

bool Peers::drop(int rank) {
  if (std::exchange(entry(rank).dropped, true)) return false;
  dropped_.push_back(rank);
  return true;
}

void Peers::explain(int rank, std::string text) {
  mark_gone(rank, State::kLost);
  Entry& lost = entry(rank);
  if (lost.explained) return;
  lost.explained = true;
  lost.reason = std::move(text);
  lost.grace_until = Clock::now();
}

}  // namespace bluecomm
