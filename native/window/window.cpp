#include "window/window.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "kernels/combine.h"

namespace bluecomm {
namespace {

// Payloads of this size are never sent before they are asked for, so they can be
// shared.
constexpr std::size_t kLeastShared = 32 << 10;

}  // namespace

Window::InEdge::InEdge(Memory memory, Mailbox mailbox,
                       std::shared_ptr<const std::vector<std::byte>> initial)
    : memory(std::move(memory)), writer(mailbox), reader(mailbox, std::move(initial)) {}

Window::Window(WindowConfig config, std::span<const std::byte> value,
               const std::function<Memory(std::size_t)>& allocate)
    : config_(std::move(config)),
      published_memory_(allocate_published(allocate)),
      published_(*published_memory_, config_.nbytes, config_.out_neighbors.size()) {
  std::shared_ptr<const std::vector<std::byte>> initial;
  if (!config_.zero_init && !config_.in_neighbors.empty()) {
    initial = std::make_shared<std::vector<std::byte>>(value.begin(), value.end());
  }
  for (const int rank : config_.in_neighbors) {
    Memory memory =
        allocate(std::max(kLeastShared, Mailbox::nbytes_for(config_.nbytes)));
    Mailbox::initialize(*memory);
    const Mailbox mailbox(*memory, config_.nbytes, config_.dtype);
    in_edges_.emplace(rank,
                      std::make_unique<InEdge>(std::move(memory), mailbox, initial));
  }
  for (const int rank : config_.out_neighbors) {
    out_edges_.emplace(rank, std::make_unique<OutEdge>());
  }
  publish(value);
}

Window::Memory Window::allocate_published(
    const std::function<Memory(std::size_t)>& allocate) const {
  const std::size_t readers = config_.out_neighbors.size();
  Memory memory = allocate(
      std::max(kLeastShared, PublishedValue::nbytes_for(config_.nbytes, readers)));
  PublishedValue::initialize(*memory, readers);
  return memory;
}

void Window::update(std::span<std::byte> result, std::span<const std::byte> own,
                    const Update& update) {
  const LockGuard own_lock(own_mutex_);
  std::vector<std::unique_lock<Mutex>> locks;
  std::vector<Term> terms;
  double p = update.self_weight * p_;
  // A floating-point term counts even if its weight is 0, because 0 * NaN is NaN.
  // Integers cannot be weighted, so such terms are left out.
  const bool is_weighted = is_floating(config_.dtype);
  bool own_added = false;
  const auto add = [&](std::span<const std::byte> value, double weight) {
    if (is_weighted || weight != 0.0) terms.push_back({value.data(), weight});
  };
  for (const auto& [rank, weight] : update.weights) {
    InEdge& edge = in_edge(rank);
    locks.emplace_back(edge.mutex);
    edge.reader.take();
    if (rank > config_.rank && !std::exchange(own_added, true)) {
      add(own, update.self_weight);
    }
    if (!edge.reader.value().empty()) add(edge.reader.value(), weight);
    p += weight * edge.reader.p();
  }
  if (!own_added) add(own, update.self_weight);
  if (terms.empty()) {
    std::fill(result.begin(), result.end(), std::byte{0});
  } else {
    combine_weighted(result, terms, 1.0, config_.dtype);
  }
  for (const auto& [rank, weight] : update.weights) {
    InEdge& edge = in_edge(rank);
    if (update.resets) edge.reader.reset(update.with_p);
    edge.reader.clear_version();
  }
  if (!update.keeps) return;
  if (update.with_p) p_ = p;
  published_.publish(result, p_);
}

void Window::publish(std::span<const std::byte> own) {
  const LockGuard lock(own_mutex_);
  published_.publish(own, p_);
}

double Window::p() {
  const LockGuard lock(own_mutex_);
  return p_;
}

void Window::scale_p(double factor) {
  const LockGuard lock(own_mutex_);
  p_ *= factor;
}

std::map<int, std::uint64_t> Window::versions() {
  std::map<int, std::uint64_t> versions;
  for (const auto& [rank, edge] : in_edges_) {
    const LockGuard lock(edge->mutex);
    versions.emplace(rank, edge->reader.version());
  }
  return versions;
}

MailboxWriter& Window::writer_for(int in_neighbor) {
  return in_edge(in_neighbor).writer;
}

void Window::replace(int in_neighbor, std::vector<std::byte>& bytes,
                     Mailbox::Meta meta) {
  InEdge& edge = in_edge(in_neighbor);
  const LockGuard lock(edge.mutex);
  edge.reader.replace(bytes, meta);
}

// --- Shared memory -------------------------------------------------------------------

bool Window::put_directly(int out_neighbor, const DirectPut& put) {
  OutEdge& edge = *out_edges_.at(out_neighbor);
  const LockGuard lock(edge.mutex);
  if (!edge.writer) return false;
  if (put.accumulates) {
    edge.writer->accumulate(put.x, put.weight, put.meta);
  } else {
    edge.writer->put(put.x, put.weight, put.meta);
  }
  return true;
}

bool Window::get_directly(int in_neighbor, double weight, bool with_p) {
  InEdge& edge = in_edge(in_neighbor);
  const LockGuard lock(edge.mutex);
  if (!edge.value) return false;
  edge.spare.resize(config_.nbytes);
  const PublishedValue::View view = edge.value->begin_read(edge.number);
  const Mailbox::Meta meta{weight * view.p, with_p};
  copy_scaled(edge.spare, view.bytes, weight, config_.dtype);
  edge.value->end_read(edge.number);
  edge.reader.replace(edge.spare, meta);
  return true;
}

void Window::attach_mailbox(int out_neighbor, SharedBytes shared) {
  const auto found = out_edges_.find(out_neighbor);
  if (found == out_edges_.end()) return;
  if (shared.bytes.size() < Mailbox::nbytes_for(config_.nbytes)) return;
  OutEdge& edge = *found->second;
  const LockGuard lock(edge.mutex);
  edge.shared = std::move(shared);
  edge.writer.emplace(Mailbox(edge.shared.bytes, config_.nbytes, config_.dtype));
}

void Window::attach_value(int in_neighbor, SharedBytes shared, std::size_t reader,
                          std::size_t readers) {
  const auto found = in_edges_.find(in_neighbor);
  if (found == in_edges_.end() || reader >= readers) return;
  if (shared.bytes.size() < PublishedValue::nbytes_for(config_.nbytes, readers)) {
    return;
  }
  InEdge& edge = *found->second;
  const LockGuard lock(edge.mutex);
  edge.shared = std::move(shared);
  edge.number = reader;
  edge.value.emplace(edge.shared.bytes, config_.nbytes, readers);
}

void Window::detach(int rank) {
  if (const auto found = out_edges_.find(rank); found != out_edges_.end()) {
    const LockGuard lock(found->second->mutex);
    found->second->writer.reset();
    found->second->shared = {};
  }
  if (const auto found = in_edges_.find(rank); found != in_edges_.end()) {
    const LockGuard lock(found->second->mutex);
    found->second->value.reset();
    found->second->shared = {};
  }
}

void Window::detach_all() {
  for (const int rank : config_.in_neighbors) detach(rank);
  for (const int rank : config_.out_neighbors) detach(rank);
}

std::optional<std::size_t> Window::reader_number(int rank) const {
  const auto& ranks = config_.out_neighbors;
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  if (found == ranks.end()) return std::nullopt;
  return static_cast<std::size_t>(found - ranks.begin());
}

}  // namespace bluecomm
