// Lets a program move the values of a window itself, because they lie outside of the
// window's memory, as those on a device. The words, p and the counts are as for any
// window, whose values have no bytes here. Threads of the program call these functions.
#include <utility>

#include "window/window.h"

namespace bluecomm {

std::optional<std::uint32_t> Window::back_slot(int out_neighbor) {
  OutEdge* const edge = find_out_edge(out_neighbor);
  if (edge == nullptr) return std::nullopt;
  const LockGuard lock(edge->mutex);
  if (!edge->writer) return std::nullopt;
  return edge->writer->back_slot();
}

std::optional<MailboxWriter::Pending> Window::pending(int out_neighbor) {
  OutEdge* const edge = find_out_edge(out_neighbor);
  if (edge == nullptr) return std::nullopt;
  const LockGuard lock(edge->mutex);
  if (!edge->writer) return std::nullopt;
  return edge->writer->pending();
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
