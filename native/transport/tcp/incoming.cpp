#include "transport/tcp/incoming.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/tcp/inbox.h"

namespace bluecomm::tcp {

TcpIncoming::TcpIncoming(Inbox& inbox, std::uint64_t message, bool charged,
                         std::unique_ptr<std::byte[]> bytes, std::size_t nbytes,
                         std::shared_ptr<SegmentPool> pool)
    : inbox_(&inbox),
      message_(message),
      charged_(charged),
      eager_(nbytes > sizeof(Header)),
      pool_(std::move(pool)) {
  std::memcpy(&header_, bytes.get(), sizeof(Header));
  if (eager_) eager_bytes_ = std::move(bytes);
}

TcpIncoming::~TcpIncoming() {
  if (inbox_ != nullptr) inbox_->remove(*this);
  for (Segment& segment : segments_) pool_->give(std::move(segment));
}

void TcpIncoming::accept(std::span<std::byte> into) {
  accepted_ = true;
  if (eager_) return;
  into_ = into;
  if (inbox_ != nullptr) inbox_->extend_grant(*this);
}

std::span<const std::byte> TcpIncoming::readable() const {
  if (!accepted_ || consumed_ == nbytes()) return {};
  if (eager_) {
    return {eager_bytes_.get() + sizeof(Header) + consumed_, nbytes() - consumed_};
  }
  const std::size_t end = arrived_.length();
  if (!into_.empty()) return into_.subspan(consumed_, end - consumed_);
  const std::size_t number = consumed_ / kSegment;
  if (end == consumed_) return {};
  const std::size_t border = std::min(end, (number + 1) * kSegment);
  return {segments_[number - first_segment_].get() + consumed_ % kSegment,
          border - consumed_};
}

void TcpIncoming::consume(std::size_t nbytes) {
  consumed_ += nbytes;
  if (!in_segments()) return;
  free_segments();
  if (inbox_ != nullptr) inbox_->extend_grant(*this);
}

void TcpIncoming::free_segments() {
  const bool all = consumed_ == nbytes();
  while (!segments_.empty() && (all || first_segment_ < consumed_ / kSegment)) {
    pool_->give(std::move(segments_.front()));
    segments_.pop_front();
    ++first_segment_;
  }
}

std::span<std::byte> TcpIncoming::place(std::size_t offset, std::size_t length) {
  if (offset > granted_ || length > granted_ - offset) return {};
  // A range is written once, so nothing is written to memory that was given back.
  if (!begun_.add(offset, offset + length)) return {};
  if (!into_.empty()) return into_.subspan(offset, length);
  const std::size_t index = offset / kSegment - first_segment_;
  while (segments_.size() <= index) segments_.emplace_back();
  if (!segments_[index]) segments_[index] = pool_->take();
  return {segments_[index].get() + offset % kSegment, length};
}

}  // namespace bluecomm::tcp
