// Combines arriving messages into the destination of a gather; see gather_state.h. The
// executor calls it under the progress lock. This is the engine's hot path: it moves
// every received byte.
#include "engine/gather_state.h"

#include <algorithm>
#include <cstring>

#include "kernels/stream_copy.h"

namespace bluecomm {
namespace {

// Sources are released, and the ring is written back, in steps of this size.
constexpr std::size_t kChunk = 256 << 10;
constexpr std::size_t kRingChunks = 4;

static_assert(kChunk % kChunkAlignment == 0);

}  // namespace

GatherState::GatherState(Gather& gather, std::uint32_t phase, DType dtype)
    : gather_(gather), phase_(phase), dtype_(dtype), inputs_(gather.sources.size()) {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    inputs_[i].weight = gather.sources[i].weight;
  }
  terms_.resize(inputs_.size());
}

bool GatherState::put(std::size_t index, std::unique_ptr<Incoming> message,
                      double scale, const PendingSends& sends) {
  inputs_[index].message = std::move(message);
  inputs_[index].weight *= scale;
  return !open_ || accept(index, sends);
}

bool GatherState::has(std::size_t index) const {
  return done_ || gather_.sources[index].peer == kSelf ||
         inputs_[index].message != nullptr;
}

const Header& GatherState::header(std::size_t index) const {
  return inputs_[index].message->header();
}

std::optional<std::size_t> GatherState::open(const PendingSends& sends) {
  open_ = true;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].message && !accept(i, sends)) return i;
  }
  return std::nullopt;
}

bool GatherState::accept(std::size_t index, const PendingSends& sends) {
  Incoming& message = *inputs_[index].message;
  if (message.header().nbytes != gather_.dst.size()) return false;
  const bool may_write = !gather_.overwrites_sent || gather_.follows_reads ||
                         sends.released(gather_.dst, phase_);
  const bool direct = gather_.combine == Combine::kCopy && may_write;
  message.accept(direct ? gather_.dst : std::span<std::byte>{});
  return true;
}

std::size_t GatherState::available(std::size_t index) const {
  const SourceState& input = inputs_[index];
  if (gather_.sources[index].peer == kSelf) {
    return std::min(own_ready_, gather_.dst.size()) - combined_;
  }
  if (!input.message) return 0;
  return input.message->consumed() + input.message->readable().size() - combined_;
}

const std::byte* GatherState::data(std::size_t index) const {
  if (gather_.sources[index].peer == kSelf) {
    return gather_.sources[index].own.data() + combined_;
  }
  const Incoming& message = *inputs_[index].message;
  return message.readable().data() + (combined_ - message.consumed());
}

// Returns the length of the next block, or 0 if none can be combined. A block does not
// cross the end of a chunk, so that it lies in one chunk of the ring.
std::size_t GatherState::next_block(std::size_t budget) const {
  const std::size_t left = gather_.dst.size() - combined_;
  std::size_t nbytes = std::min(left, kChunk - combined_ % kChunk);
  nbytes = std::min(nbytes, std::max(budget, kChunkAlignment));
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    nbytes = std::min(nbytes, available(i));
  }
  return nbytes == left ? nbytes : nbytes - nbytes % kChunkAlignment;
}

// Returns where the next block may be combined, or null while the ring is full.
std::byte* GatherState::target(std::size_t nbytes, const PendingSends& sends) {
  std::byte* const dst = gather_.dst.data() + combined_;
  if (!gather_.overwrites_sent || is_in_place()) return dst;
  if (written_ == combined_ && sends.released({dst, nbytes}, phase_)) return dst;
  if (combined_ / kChunk - written_ / kChunk >= kRingChunks) return nullptr;
  if (!ring_) {
    const std::size_t whole = (gather_.dst.size() + kChunk - 1) / kChunk * kChunk;
    ring_.reset(new std::byte[std::min(whole, kRingChunks * kChunk)]);
  }
  return ring_.get() + combined_ % (kRingChunks * kChunk);
}

// Returns whether the transport has received the next bytes into their destination.
bool GatherState::is_in_place() const {
  return gather_.combine == Combine::kCopy && data(0) == gather_.dst.data() + combined_;
}

void GatherState::combine(std::byte* out, std::size_t nbytes) {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    terms_[i] = {data(i), inputs_[i].weight};
  }
  const std::span<std::byte> block(out, nbytes);
  switch (gather_.combine) {
    case Combine::kCopy:
      if (terms_[0].data == out) return;
      if (gather_.past_caches) return stream_copy(block, {terms_[0].data, nbytes});
      std::memcpy(out, terms_[0].data, nbytes);
      return;
    case Combine::kWeighted:
      combine_weighted(block, terms_, gather_.post_scale, dtype_);
      return;
    case Combine::kReduce:
      combine_reduce(block, terms_, gather_.op, gather_.post_scale, dtype_);
      return;
  }
}

// Releases consumed bytes of the sources: in steps of kChunk, at the end, and when a
// source has no more bytes available.
void GatherState::release_consumed() {
  const std::size_t whole = gather_.dst.size();
  for (SourceState& input : inputs_) {
    if (!input.message) continue;
    const std::size_t used = combined_ - input.message->consumed();
    if (used == 0) continue;
    if (combined_ == whole || used >= kChunk ||
        used == input.message->readable().size()) {
      input.message->consume(used);
    }
  }
}

bool GatherState::write_back(const PendingSends& sends) {
  bool changed = false;
  while (written_ < combined_) {
    const std::size_t end =
        std::min((written_ / kChunk + 1) * kChunk, gather_.dst.size());
    if (end > combined_) break;
    const std::span<std::byte> chunk = gather_.dst.subspan(written_, end - written_);
    if (!sends.released(chunk, phase_)) break;
    std::memcpy(chunk.data(), ring_.get() + written_ % (kRingChunks * kChunk),
                chunk.size());
    written_ = end;
    changed = true;
  }
  return changed;
}

bool GatherState::advance(std::size_t& budget, const PendingSends& sends) {
  if (done_ || !open_) return false;
  bool changed = write_back(sends);
  while (budget > 0 && combined_ < gather_.dst.size()) {
    const std::size_t nbytes = next_block(budget);
    if (nbytes == 0) break;
    std::byte* const out = target(nbytes, sends);
    if (out == nullptr) break;
    combine(out, nbytes);
    combined_ += nbytes;
    if (out == gather_.dst.data() + written_) written_ = combined_;
    budget -= std::min(budget, nbytes);
    release_consumed();
    write_back(sends);
    changed = true;
  }
  if (is_complete()) {
    for (SourceState& input : inputs_) input.message.reset();
    done_ = true;
    changed = true;
  }
  return changed;
}

bool GatherState::is_complete() const {
  if (combined_ < gather_.dst.size() || written_ < combined_) return false;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (!has(i)) return false;  // a message without bytes has not arrived yet
    // consume() fails if the sender cancels while its memory is read in place. The data
    // may then be torn, so the operation waits until the reason arrives.
    const Incoming* message = inputs_[i].message.get();
    if (message != nullptr && message->consumed() < message->header().nbytes) {
      return false;
    }
  }
  return true;
}

// --- Lost ranks ----------------------------------------------------------------------

std::size_t GatherState::own_index() const {
  const auto own =
      std::find_if(gather_.sources.begin(), gather_.sources.end(),
                   [](const Source& source) { return source.peer == kSelf; });
  return static_cast<std::size_t>(own - gather_.sources.begin());
}

GatherState::Drop GatherState::drop(std::size_t index) {
  if (done_) return Drop::kKept;
  Incoming* const message = inputs_[index].message.get();
  if (message != nullptr) {
    const std::size_t here = message->consumed() + message->readable().size();
    if (open_ && here == message->header().nbytes) return Drop::kKept;
    if (message->consumed() < combined_)
      message->consume(combined_ - message->consumed());
    if (message->consumed() < combined_) return Drop::kInvalid;
  }
  inputs_[own_index()].weight += inputs_[index].weight;
  const auto position = static_cast<std::ptrdiff_t>(index);
  inputs_.erase(inputs_.begin() + position);
  gather_.sources.erase(gather_.sources.begin() + position);
  terms_.resize(inputs_.size());
  return Drop::kReplaced;
}

bool GatherState::has_invalid_bytes() const {
  if (done_ || combined_ < gather_.dst.size()) return false;
  return std::any_of(inputs_.begin(), inputs_.end(), [&](const SourceState& input) {
    return input.message && input.message->consumed() < combined_;
  });
}

bool GatherState::keep_own() {
  const Source own = gather_.sources[own_index()];
  if (own.own.data() == gather_.dst.data()) return false;
  gather_.sources = {own};
  inputs_.clear();
  inputs_.emplace_back();
  terms_.resize(1);
  combined_ = written_ = 0;
  return true;
}

void GatherState::collect_missing(std::vector<Missing>& missing) const {
  if (done_) return;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (gather_.sources[i].peer == kSelf) continue;
    const Incoming* message = inputs_[i].message.get();
    if (message == nullptr) {
      missing.push_back({gather_.sources[i].peer, 0, gather_.dst.size(), false});
      continue;
    }
    const std::size_t expected = message->header().nbytes;
    const std::size_t received =
        open_ ? message->consumed() + message->readable().size() : 0;
    if (received < expected) {
      missing.push_back({gather_.sources[i].peer, received, expected, true});
    }
  }
}

void GatherState::collect_blockers(std::vector<int>& peers) const {
  if (done_) return;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (gather_.sources[i].peer == kSelf) continue;
    const bool shows_more =
        open_ && inputs_[i].message && combined_ < gather_.dst.size() ? available(i) > 0
                                                                      : has(i);
    if (!shows_more) peers.push_back(gather_.sources[i].peer);
  }
}

}  // namespace bluecomm
