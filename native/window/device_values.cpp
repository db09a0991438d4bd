// Lets a program move the values of a window itself, because they lie in memory of a
// device. The words, p and the counts are as for any window, whose values have no bytes
// here. Threads of the program call these functions.
#include <utility>

#include "window/window.h"

namespace bluecomm {

std::optional<std::uint32_t> Window::back_slot(int out_neighbor) {
  OutEdge* const edge = find_out_edge(out_neighbor);
  if (edge == nullptr) return std::nullopt;
  const LockGuard lock(edge->mutex);
  if (edge->writer) return edge->writer->back_slot();
  if (!edge->has_back) return std::nullopt;
  return edge->back;
}

std::optional<MailboxWriter::Pending> Window::pending(int out_neighbor) {
  OutEdge* const edge = find_out_edge(out_neighbor);
  if (edge == nullptr) return std::nullopt;
  const LockGuard lock(edge->mutex);
  if (edge->writer) return edge->writer->pending();
  if (!edge->has_back || !edge->pending) return std::nullopt;
  return MailboxWriter::Pending{0, *edge->pending};
}

bool Window::publish_sum(int out_neighbor, const MailboxWriter::Pending& pending,
                         Mailbox::Meta meta) {
  OutEdge* const edge = find_out_edge(out_neighbor);
  if (edge == nullptr) return false;
  const LockGuard lock(edge->mutex);
  meta.signal = edge->signal;
  return edge->writer && edge->writer->publish_sum(pending, meta);
}

std::optional<std::uint32_t> Window::begin_get(int in_neighbor) {
  InEdge* const edge = find_in_edge(in_neighbor);
  if (edge == nullptr) return std::nullopt;
  const LockGuard lock(edge->mutex);
  if (!edge->value) return std::nullopt;
  edge->begun = edge->value->begin_read(edge->number);
  return edge->begun->slot;
}

MailboxReader::Publication Window::next(int in_neighbor) {
  InEdge& edge = in_edge(in_neighbor);
  const LockGuard lock(edge.mutex);
  return edge.is_retired ? MailboxReader::Publication::kNone : edge.reader.next();
}

bool Window::shares_mailbox(int out_neighbor) {
  OutEdge* const edge = find_out_edge(out_neighbor);
  if (edge == nullptr) return false;
  const LockGuard lock(edge->mutex);
  return edge->writer.has_value();
}

void Window::forget_back(int out_neighbor) {
  OutEdge* const edge = find_out_edge(out_neighbor);
  if (edge == nullptr) return;
  const LockGuard lock(edge->mutex);
  edge->has_back = false;
}

bool Window::was_published(int out_neighbor) {
  OutEdge* const edge = find_out_edge(out_neighbor);
  if (edge == nullptr) return false;
  const LockGuard lock(edge->mutex);
  return edge->was_published;
}

bool Window::publish_for(int in_neighbor, Mailbox::Meta meta, bool is_sum) {
  MailboxWriter& writer = in_edge(in_neighbor).writer;
  const auto pending = writer.pending();
  if (is_sum) return pending && writer.publish_sum(*pending, meta);
  if (pending) return false;
  writer.publish_add(meta);
  return true;
}

void Window::note_back(int out_neighbor, int back_slot, bool was_published) {
  OutEdge* const edge = find_out_edge(out_neighbor);
  if (edge == nullptr || back_slot < 0) return;
  const LockGuard lock(edge->mutex);
  edge->was_published = was_published;
  // If the sum was not published, the reader had taken the pending value.
  edge->pending = was_published ? std::optional(edge->back) : std::nullopt;
  edge->back = static_cast<std::uint32_t>(back_slot) % Mailbox::kSlots;
}

std::uint64_t Window::signal(int out_neighbor) {
  OutEdge* const edge = find_out_edge(out_neighbor);
  if (edge == nullptr) return 0;
  const LockGuard lock(edge->mutex);
  return edge->signal;
}

void Window::set_signal(int out_neighbor, std::uint64_t signal) {
  OutEdge* const edge = find_out_edge(out_neighbor);
  if (edge == nullptr) return;
  const LockGuard lock(edge->mutex);
  edge->signal = signal;
}

std::uint64_t Window::next_signal(int in_neighbor) {
  InEdge& edge = in_edge(in_neighbor);
  const LockGuard lock(edge.mutex);
  return edge.reader.next_signal();
}

std::pair<MailboxReader::Publication, std::uint32_t> Window::take(int in_neighbor) {
  InEdge& edge = in_edge(in_neighbor);
  const LockGuard lock(edge.mutex);
  const auto publication = edge.reader.take_next();
  return {publication, edge.reader.front_slot()};
}

std::uint32_t Window::reserve() {
  const LockGuard lock(own_mutex_);
  reserved_ = published_.free_slot();
  return *reserved_;
}

}  // namespace bluecomm
