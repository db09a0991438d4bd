#include "window/window.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <stdexcept>
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
      allocate_(allocate),
      published_memory_(allocate_published()),
      published_(*published_memory_, config_.nbytes, readers()) {
  Initial initial;
  if (!config_.in_neighbors.empty()) initial = initial_of(value);
  for (const int rank : config_.in_neighbors) {
    in_edges_.emplace(rank, make_in_edge(initial));
  }
  for (const int rank : config_.out_neighbors) {
    auto edge = std::make_unique<OutEdge>();
    edge->accepts = true;  // from the end of win_create on
    out_edges_.emplace(rank, std::move(edge));
  }
  publish(value);
}

Window::Initial Window::initial_of(std::span<const std::byte> value) const {
  if (config_.zero_init) return nullptr;
  return std::make_shared<std::vector<std::byte>>(value.begin(), value.end());
}

std::unique_ptr<Window::InEdge> Window::make_in_edge(const Initial& initial) const {
  Memory memory =
      allocate_(std::max(kLeastShared, Mailbox::nbytes_for(config_.nbytes)));
  Mailbox::initialize(*memory);
  const Mailbox mailbox(*memory, config_.nbytes, config_.dtype);
  return std::make_unique<InEdge>(std::move(memory), mailbox, initial);
}

// Pages that no reader makes necessary are never touched, so room for all ranks costs
// no memory.
Window::Memory Window::allocate_published() const {
  Memory memory = allocate_(
      std::max(kLeastShared, PublishedValue::nbytes_for(config_.nbytes, readers())));
  PublishedValue::initialize(*memory, readers());
  return memory;
}

// --- Edges ---------------------------------------------------------------------------

Window::InEdge* Window::find_in_edge(int rank) const {
  const LockGuard lock(edges_mutex_);
  const auto found = in_edges_.find(rank);
  return found == in_edges_.end() ? nullptr : found->second.get();
}

Window::OutEdge* Window::find_out_edge(int rank) const {
  const LockGuard lock(edges_mutex_);
  const auto found = out_edges_.find(rank);
  return found == out_edges_.end() ? nullptr : found->second.get();
}

Window::InEdge& Window::in_edge(int rank) const {
  InEdge* const edge = find_in_edge(rank);
  if (edge == nullptr) {
    throw std::invalid_argument("window '" + config_.name + "': rank " +
                                std::to_string(rank) + " has no mailbox here");
  }
  return *edge;
}

Window::OutEdge* Window::reach_out_edge(int rank) {
  const LockGuard lock(edges_mutex_);
  const auto found = out_edges_.find(rank);
  if (found != out_edges_.end()) return found->second.get();
  if (rank >= config_.ranks || rank == config_.rank) return nullptr;
  return out_edges_.emplace(rank, std::make_unique<OutEdge>()).first->second.get();
}

std::vector<int> Window::add_in_edges(const std::vector<int>& ranks,
                                      std::span<const std::byte> own) {
  std::vector<int> added;
  Initial initial;
  for (const int rank : ranks) {
    if (rank < 0 || rank >= config_.ranks || rank == config_.rank) {
      throw std::invalid_argument("window '" + config_.name +
                                  "' gets no edge from rank " + std::to_string(rank));
    }
    if (find_in_edge(rank) != nullptr) continue;
    if (added.empty()) initial = initial_of(own);
    auto edge = make_in_edge(initial);
    const LockGuard lock(edges_mutex_);
    if (in_edges_.try_emplace(rank, std::move(edge)).second) added.push_back(rank);
  }
  return added;
}

std::vector<int> Window::sources() const {
  const LockGuard lock(edges_mutex_);
  std::vector<int> ranks;
  for (const auto& [rank, edge] : in_edges_) ranks.push_back(rank);
  return ranks;
}

std::vector<int> Window::targets() const {
  std::vector<std::pair<int, OutEdge*>> edges;
  {
    const LockGuard lock(edges_mutex_);
    for (const auto& [rank, edge] : out_edges_) edges.emplace_back(rank, edge.get());
  }
  std::vector<int> ranks;
  for (const auto& [rank, edge] : edges) {
    const LockGuard lock(edge->mutex);
    if (edge->accepts && !edge->is_retired) ranks.push_back(rank);
  }
  return ranks;
}

bool Window::accept(int rank) {
  OutEdge* const edge = reach_out_edge(rank);
  if (edge == nullptr) return false;
  const LockGuard lock(edge->mutex);
  edge->accepts = true;
  return true;
}

void Window::retire(int rank) {
  detach(rank);
  if (OutEdge* const edge = find_out_edge(rank)) {
    const LockGuard lock(edge->mutex);
    edge->is_retired = true;
  }
  if (InEdge* const edge = find_in_edge(rank)) {
    const LockGuard lock(edge->mutex);
    if (edge->is_retired) return;
    const bool has_taken = edge->reader.take();
    edge->has_last = has_taken || edge->reader.version() > 0;
    edge->is_retired = true;
  }
}

// --- The program ---------------------------------------------------------------------

std::size_t Window::update(std::span<std::byte> result, std::span<const std::byte> own,
                           const Update& update) {
  const LockGuard own_lock(own_mutex_);
  // A floating-point term counts even if its weight is 0, because 0 * NaN is NaN.
  // Integers cannot be weighted, so such terms are left out.
  const bool is_weighted = is_floating(config_.dtype);
  std::vector<std::unique_lock<Mutex>> locks;
  struct Used {
    InEdge& edge;
    int rank;
    double weight;
  };
  std::vector<Used> used;
  double self_weight = update.self_weight;
  for (const auto& [rank, weight] : update.weights) {
    InEdge& edge = in_edge(rank);
    locks.emplace_back(edge.mutex);
    if (!edge.is_retired) {
      if (update.takes) edge.reader.take();
    } else if (!edge.has_last && !update.resets && is_weighted) {
      self_weight += weight;
      continue;
    }
    used.push_back({edge, rank, weight});
  }
  std::vector<Term> terms;
  double p = self_weight * p_;
  bool own_added = false;
  const auto add = [&](std::span<const std::byte> value, double weight) {
    if (is_weighted || weight != 0.0) terms.push_back({value.data(), weight});
  };
  for (const auto& [edge, rank, weight] : used) {
    if (rank > config_.rank && !std::exchange(own_added, true)) add(own, self_weight);
    if (!edge.reader.value().empty()) add(edge.reader.value(), weight);
    p += weight * edge.reader.p();
  }
  if (!own_added) add(own, self_weight);
  if (terms.empty()) {
    std::fill(result.begin(), result.end(), std::byte{0});
  } else {
    combine_weighted(result, terms, 1.0, config_.dtype);
  }
  for (const auto& [edge, rank, weight] : used) {
    if (update.resets) edge.reader.reset(update.with_p);
    edge.reader.clear_version();
    edge.has_last = edge.has_last && !update.keeps && !update.resets;
  }
  const std::size_t replaced = update.weights.size() - used.size();
  if (!update.keeps) return replaced;
  if (update.with_p) p_ = p;
  publish_locked(result);
  return replaced;
}

void Window::publish(std::span<const std::byte> own) {
  const LockGuard lock(own_mutex_);
  publish_locked(own);
}

void Window::publish_locked(std::span<const std::byte> own) {
  if (const auto slot = std::exchange(reserved_, std::nullopt)) {
    published_.make_current(*slot, p_);
  } else {
    published_.publish(own, p_);
  }
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
  for (const int rank : sources()) {
    InEdge& edge = in_edge(rank);
    const LockGuard lock(edge.mutex);
    const std::uint64_t last = edge.has_last ? 1 : 0;
    versions.emplace(rank, edge.is_retired ? last : edge.reader.version());
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
  OutEdge* const edge = find_out_edge(out_neighbor);
  if (edge == nullptr) return false;
  const LockGuard lock(edge->mutex);
  if (!edge->writer) return false;
  Mailbox::Meta meta = put.meta;
  meta.signal = edge->signal;
  if (put.accumulates) {
    edge->writer->accumulate(put.x, put.weight, meta);
  } else {
    edge->writer->put(put.x, put.weight, meta);
  }
  return true;
}

bool Window::get_directly(int in_neighbor, double weight, bool with_p) {
  InEdge* const edge = find_in_edge(in_neighbor);
  if (edge == nullptr) return false;
  const LockGuard lock(edge->mutex);
  if (!edge->value) return false;
  edge->spare.resize(config_.nbytes);
  const std::optional begun = std::exchange(edge->begun, std::nullopt);
  const PublishedValue::View view =
      begun ? *begun : edge->value->begin_read(edge->number);
  const Mailbox::Meta meta{weight * view.p, with_p};
  copy_scaled(edge->spare, view.bytes, weight, config_.dtype);
  edge->value->end_read(edge->number);
  edge->reader.replace(edge->spare, meta);
  return true;
}

void Window::attach_mailbox(int out_neighbor, SharedBytes shared) {
  if (shared.bytes.size() < Mailbox::nbytes_for(config_.nbytes)) return;
  OutEdge* const edge = reach_out_edge(out_neighbor);
  if (edge == nullptr) return;
  const LockGuard lock(edge->mutex);
  edge->shared = std::move(shared);
  edge->writer.emplace(Mailbox(edge->shared.bytes, config_.nbytes, config_.dtype));
}

void Window::attach_value(int in_neighbor, SharedBytes shared, std::size_t reader,
                          std::size_t readers) {
  InEdge* const edge = find_in_edge(in_neighbor);
  if (edge == nullptr || reader >= readers) return;
  if (shared.bytes.size() < PublishedValue::nbytes_for(config_.nbytes, readers)) {
    return;
  }
  const LockGuard lock(edge->mutex);
  edge->shared = std::move(shared);
  edge->number = reader;
  edge->value.emplace(edge->shared.bytes, config_.nbytes, readers);
}

void Window::detach(int rank) {
  if (OutEdge* const edge = find_out_edge(rank)) {
    const LockGuard lock(edge->mutex);
    edge->writer.reset();
    edge->shared = {};
    edge->has_back = false;
  }
  if (InEdge* const edge = find_in_edge(rank)) {
    const LockGuard lock(edge->mutex);
    edge->value.reset();
    edge->begun.reset();
    edge->shared = {};
  }
}

void Window::detach_all() {
  std::set<int> ranks;
  {
    const LockGuard lock(edges_mutex_);
    for (const auto& [rank, edge] : in_edges_) ranks.insert(rank);
    for (const auto& [rank, edge] : out_edges_) ranks.insert(rank);
  }
  for (const int rank : ranks) detach(rank);
}

std::size_t Window::readers() const {
  if (config_.ranks > 0) return static_cast<std::size_t>(config_.ranks);
  return config_.out_neighbors.size();
}

std::optional<std::size_t> Window::reader_number(int rank) const {
  if (config_.ranks > 0) return static_cast<std::size_t>(rank);
  const auto& ranks = config_.out_neighbors;
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  if (found == ranks.end()) return std::nullopt;
  return static_cast<std::size_t>(found - ranks.begin());
}

}  // namespace bluecomm
