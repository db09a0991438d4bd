#include "stream/frame_parser.h"

#include <algorithm>
#include <cstring>

namespace bluecomm::stream {

std::array<std::span<std::byte>, 2> FrameParser::spaces() {
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (begin_ > 0) {
    // Less than a frame's head is left: everything else has been parsed.
    std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const std::span<std::byte> rest(buffer_.get() + end_, kBufferSize - end_);
  if (place_.empty()) return {rest, {}};
  return {place_, rest.first(kTail)};
}

std::string_view FrameParser::advance(std::size_t nbytes, FrameSink& sink) {
  if (!place_.empty()) {
    const std::size_t count = std::min(nbytes, place_.size());
    place_ = place_.subspan(count);
    missing_ -= count;
    nbytes -= count;
    if (missing_ > 0) return {};
    if (const auto defect = sink.end(frame_, stream_); !defect.empty()) return defect;
  }
  end_ += nbytes;
  return parse(sink);
}

std::string_view FrameParser::parse(FrameSink& sink) {
  while (true) {
    if (missing_ > 0) {
      const std::size_t count = std::min(missing_, end_ - begin_);
      if (!place_.empty() && count > 0) {
        std::memcpy(place_.data(), buffer_.get() + begin_, count);
        place_ = place_.subspan(count);
      }
      begin_ += count;
      missing_ -= count;
      if (missing_ > 0) return {};
      if (const auto defect = sink.end(frame_, stream_); !defect.empty()) return defect;
    }
    if (end_ - begin_ < sizeof(Frame)) return {};
    if (const auto defect = start(sink); !defect.empty()) return defect;
  }
}

std::string_view FrameParser::start(FrameSink& sink) {
  std::memcpy(&frame_, buffer_.get() + begin_, sizeof(Frame));
  begin_ += sizeof(Frame);
  if (const auto defect = defect_of(frame_); !defect.empty()) return defect;
  if (frame_.length == 0) return sink.end(frame_, stream_);
  const FrameSink::Place place = sink.begin(frame_, stream_);
  place_ = place.into;
  missing_ = frame_.length;
  return place.defect;
}

void FrameParser::drop(std::uint64_t message) {
  if (frame_.kind == FrameKind::kChunk && frame_.message == message) place_ = {};
}

}  // namespace bluecomm::stream
