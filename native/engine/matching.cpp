#include "engine/matching.h"

#include <algorithm>
#include <utility>

namespace bluecomm {

std::uint32_t Matching::next_sequence(std::uint64_t group, std::uint64_t name) const {
  const auto line = lines_.find(Key{group, name, 0, 0});
  return line == lines_.end() ? first_ : line->second.next;
}

std::uint32_t Matching::unused_sequence() const {
  std::uint32_t unused = first_;
  for (const auto& [key, line] : lines_) unused = std::max(unused, line.next);
  return unused;
}

void Matching::restart(std::uint32_t sequence) {
  first_ = sequence;
  std::erase_if(lines_,
                [](const auto& entry) { return entry.second.unfinished.empty(); });
  for (auto& [key, line] : lines_) line.next = sequence;
  std::erase_if(unmatched_,
                [&](const auto& entry) { return entry.first.sequence < sequence; });
}

std::vector<Unmatched> Matching::remove_group(std::uint64_t group) {
  std::erase_if(lines_, [&](const auto& entry) { return entry.first.group == group; });
  std::vector<Unmatched> messages;
  for (auto entry = unmatched_.begin(); entry != unmatched_.end();) {
    if (entry->first.group != group) {
      ++entry;
      continue;
    }
    for (Unmatched& one : entry->second) messages.push_back(std::move(one));
    entry = unmatched_.erase(entry);
  }
  return messages;
}

bool Matching::add(std::shared_ptr<Operation> operation) {
  Line& line = lines_[line_key(operation->key())];
  line.next = operation->key().sequence + 1;
  // Unnamed calls are matched by their order and do not wait for each other.
  const bool must_wait = !line.unfinished.empty() && !operation->call().name.empty();
  line.unfinished.push_back(std::move(operation));
  return must_wait;
}

void Matching::continue_at(const Key& key) {
  lines_[line_key(key)].next = key.sequence;
}

void Matching::skip(const Key& key) {
  lines_[line_key(key)].next = key.sequence + 1;
  unmatched_.erase(key);
}

std::shared_ptr<Operation> Matching::remove(const Operation& operation) {
  std::vector<std::shared_ptr<Operation>>& line =
      lines_.at(line_key(operation.key())).unfinished;
  std::erase_if(line, [&](const std::shared_ptr<Operation>& one) {
    return one.get() == &operation;
  });
  if (line.empty() || line.front()->state() != Operation::State::kQueued) return {};
  return line.front();
}

Operation* Matching::find(const Key& key) const {
  const auto line = lines_.find(line_key(key));
  if (line == lines_.end()) return nullptr;
  for (const std::shared_ptr<Operation>& one : line->second.unfinished) {
    if (one->key() == key) return one.get();
  }
  return nullptr;
}

bool Matching::is_in_flight(Kind kind, std::uint64_t group, std::uint64_t name) const {
  const auto line = lines_.find(Key{group, name, 0, 0});
  if (line == lines_.end()) return false;
  const auto& unfinished = line->second.unfinished;
  return std::any_of(unfinished.begin(), unfinished.end(),
                     [kind](const std::shared_ptr<Operation>& one) {
                       return one->call().kind == kind;
                     });
}

Operation* Matching::find_earlier(const Key& key) const {
  const auto line = lines_.find(line_key(key));
  if (line == lines_.end() || line->second.unfinished.empty()) return nullptr;
  Operation* const first = line->second.unfinished.front().get();
  const bool earlier = first->key().sequence < key.sequence;
  return earlier && !first->call().name.empty() ? first : nullptr;
}

Matching::Standing Matching::standing(const Key& key) const {
  if (find(key) != nullptr) return Standing::kUnfinished;
  return key.sequence < next_sequence(key.group, key.name) ? Standing::kPast
                                                           : Standing::kFuture;
}

void Matching::keep(Unmatched message) {
  message.order = kept_++;
  unmatched_[message.envelope.key].push_back(std::move(message));
}

std::vector<Unmatched> Matching::take(const Key& key) {
  const auto found = unmatched_.find(key);
  if (found == unmatched_.end()) return {};
  std::vector<Unmatched> messages = std::move(found->second);
  unmatched_.erase(found);
  return messages;
}

std::optional<Envelope> Matching::announced_by(int peer) const {
  const Unmatched* first = nullptr;
  for (const auto& [key, messages] : unmatched_) {
    for (const Unmatched& one : messages) {
      if (one.peer != peer) continue;
      if (first == nullptr || one.order < first->order) first = &one;
    }
  }
  return first == nullptr ? std::nullopt : std::optional<Envelope>(first->envelope);
}

void Matching::keep_abort(const Key& key, Status status) {
  aborts_.insert(key, std::move(status));
  unmatched_.erase(key);
}

std::optional<Status> Matching::abort_of(const Key& key) const {
  const Status* const status = aborts_.find(key);
  return status == nullptr ? std::nullopt : std::optional<Status>(*status);
}

void Matching::remember_failure(const Key& key) { failed_.insert(key, true); }

}  // namespace bluecomm
