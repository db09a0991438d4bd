#include "stream/frame_parser.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/crc32c.h"

namespace bluecomm::stream {

std::array<std::span<std::byte>, 2> FrameParser::spaces() {
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (begin_ > 0) {
    // The unparsed rest is shorter than a frame's head.
    std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const std::span<std::byte> rest(buffer_.get() + end_, kBufferSize - end_);
  if (destination_.empty()) return {rest, {}};
  return {destination_, frame_.length < kShort ? rest : rest.first(kTail)};
}

std::string_view FrameParser::advance(std::size_t nbytes, FrameSink& sink) {
  if (!destination_.empty()) {
    const std::size_t count = std::min(nbytes, destination_.size());
    if (expected_) seen_ = crc32c(destination_.first(count), seen_);
    destination_ = destination_.subspan(count);
    missing_ -= count;
    nbytes -= count;
    if (missing_ > 0) return {};
  }
  end_ += nbytes;
  return parse(sink);
}

std::string_view FrameParser::parse(FrameSink& sink) {
  while (true) {
    if (in_payload_) {
      const std::size_t count = std::min(missing_, end_ - begin_);
      if (!destination_.empty() && count > 0) {
        std::memcpy(destination_.data(), buffer_.get() + begin_, count);
        destination_ = destination_.subspan(count);
      }
      if (expected_) seen_ = crc32c({buffer_.get() + begin_, count}, seen_);
      begin_ += count;
      missing_ -= count;
      if (missing_ > 0 || end_ - begin_ < tag_nbytes_) return {};
      if (const auto defect = finish_payload(sink); !defect.empty()) return defect;
    }
    if (end_ - begin_ < sizeof(Frame) + tag_nbytes_) return {};
    if (const auto defect = start(sink); !defect.empty()) return defect;
  }
}

std::string_view FrameParser::start(FrameSink& sink) {
  const std::span record(buffer_.get() + begin_, sizeof(Frame));
  const std::span tag(buffer_.get() + begin_ + sizeof(Frame), tag_nbytes_);
  if (opener_ != nullptr && !opener_->open(record, tag)) return kNotAuthentic;
  std::memcpy(&frame_, record.data(), sizeof(Frame));
  begin_ += sizeof(Frame) + tag_nbytes_;
  if (const auto defect = defect_of(frame_); !defect.empty()) return defect;
  if (frame_.kind == FrameKind::kChecksum) {
    if (expected_) return "a checksum of a checksum";
    if (opener_ != nullptr) return "a checksum on an encrypted stream";
    expected_ = static_cast<std::uint32_t>(frame_.offset);
    checked_ = true;
    return {};
  }
  if (checked_ && !expected_) return "a frame without its checksum";
  if (expected_) seen_ = crc32c(bytes_of(frame_));
  if (frame_.length == 0) return finish(sink);
  const FrameSink::Destination destination = sink.begin(frame_, stream_);
  destination_ = payload_ = destination.into;
  missing_ = frame_.length;
  in_payload_ = true;
  return destination.defect;
}

std::string_view FrameParser::finish_payload(FrameSink& sink) {
  in_payload_ = false;
  if (opener_ != nullptr) {
    const std::span tag(buffer_.get() + begin_, tag_nbytes_);
    begin_ += tag_nbytes_;
    if (payload_.empty()) {
      opener_->skip();
    } else if (!opener_->open(payload_, tag)) {
      return kNotAuthentic;
    }
  }
  return finish(sink);
}

std::string_view FrameParser::finish(FrameSink& sink) {
  if (expected_ && *std::exchange(expected_, std::nullopt) != seen_) {
    return "a frame that does not match its checksum";
  }
  return sink.end(frame_, stream_);
}

void FrameParser::drop(std::uint64_t message) {
  if (frame_.kind == FrameKind::kChunk && frame_.message == message) {
    destination_ = payload_ = {};
  }
}

}  // namespace bluecomm::stream
