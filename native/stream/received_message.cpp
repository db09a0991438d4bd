#include "stream/received_message.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "stream/inbox.h"

namespace bluecomm::stream {

ReceivedMessage::ReceivedMessage(Inbox& inbox, const Frame& frame,
                                 std::size_t head_nbytes,
                                 std::unique_ptr<std::byte[]> bytes,
                                 const std::shared_ptr<SegmentPool>& pool)
    : inbox_(&inbox),
      message_(frame.message),
      nbytes_(frame.offset),
      head_nbytes_(head_nbytes),
      charged_((frame.flags & kCharged) != 0),
      eager_(frame.length > head_nbytes),
      unsolicited_(charged_ && !eager_),
      bytes_(std::move(bytes)),
      granted_(unsolicited_ ? nbytes_ : 0),
      pool_(eager_ ? nullptr : pool) {}

ReceivedMessage::~ReceivedMessage() {
  if (inbox_ != nullptr) inbox_->remove(*this);
  for (PayloadSegment& segment : segments_) pool_->give(std::move(segment));
}

void ReceivedMessage::accept(std::span<std::byte> into) {
  accepted_ = true;
  if (eager_) return;
  into_ = into;
  if (stored_ && !into_.empty()) copy_stored(0, arrived_.length());
  if (inbox_ != nullptr) inbox_->extend_grant(*this);
}

// Once the owner has given a buffer, the memory of an unsolicited message holds at most
// one chunk that is not in that buffer: the one that is being received.
void ReceivedMessage::copy_stored(std::size_t begin, std::size_t end) {
  if (end > begin)
    std::memcpy(into_.data() + begin, stored_.get() + begin, end - begin);
  if (begun_.length() == arrived_.length()) stored_.reset();
}

void ReceivedMessage::end_chunk(std::size_t begin, std::size_t end) {
  arrived_.add(begin, end);
  if (stored_ && !into_.empty()) copy_stored(begin, end);
}

void ReceivedMessage::adopt(std::span<std::byte> into, Prefix begun, Prefix arrived) {
  accepted_ = true;
  into_ = into;
  granted_ = into.size();
  begun_ = std::move(begun);
  arrived_ = std::move(arrived);
}

std::span<const std::byte> ReceivedMessage::readable() const {
  if (!accepted_ || consumed_ == nbytes_) return {};
  if (eager_) {
    return {bytes_.get() + head_nbytes_ + consumed_, nbytes_ - consumed_};
  }
  const std::size_t end = arrived_.length();
  if (!into_.empty()) return into_.subspan(consumed_, end - consumed_);
  if (unsolicited_) return {stored_.get() + consumed_, end - consumed_};
  const std::size_t number = consumed_ / kSegment;
  if (end == consumed_) return {};
  const std::size_t border = std::min(end, (number + 1) * kSegment);
  return {segments_[number - first_segment_].get() + consumed_ % kSegment,
          border - consumed_};
}

void ReceivedMessage::consume(std::size_t nbytes) {
  consumed_ += nbytes;
  if (!in_segments()) return;
  free_segments();
  if (inbox_ != nullptr) inbox_->extend_grant(*this);
}

void ReceivedMessage::free_segments() {
  const bool all = consumed_ == nbytes_;
  const std::size_t past =
      all ? segments_.size()
          : std::min(segments_.size(), consumed_ / kSegment - first_segment_);
  const auto end = segments_.begin() + static_cast<std::ptrdiff_t>(past);
  for (auto segment = segments_.begin(); segment != end; ++segment) {
    pool_->give(std::move(*segment));
  }
  segments_.erase(segments_.begin(), end);
  first_segment_ += past;
}

std::span<std::byte> ReceivedMessage::destination(const Frame& frame,
                                                  std::size_t stream) {
  const std::size_t offset = frame.offset;
  const std::size_t length = frame.length;
  if (offset > granted_ || length > granted_ - offset) return {};
  if (unsolicited_ && (stream != 0 || offset != begun_.length())) return {};
  // Each range is written once, so that memory that was released is not written again.
  if (!begun_.add(offset, offset + length)) return {};
  if (unsolicited_) return unsolicited_destination(offset, length);
  if (!into_.empty()) return into_.subspan(offset, length);
  const std::size_t index = offset / kSegment - first_segment_;
  while (segments_.size() <= index) segments_.emplace_back();
  if (!segments_[index]) segments_[index] = pool_->take();
  return {segments_[index].get() + offset % kSegment, length};
}

std::span<std::byte> ReceivedMessage::unsolicited_destination(std::size_t offset,
                                                              std::size_t length) {
  if (!into_.empty()) return into_.subspan(offset, length);
  if (!stored_) stored_ = std::make_unique_for_overwrite<std::byte[]>(nbytes_);
  return {stored_.get() + offset, length};
}

}  // namespace bluecomm::stream
