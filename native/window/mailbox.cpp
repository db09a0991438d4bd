#include "window/mailbox.h"

#include <algorithm>
#include <new>
#include <utility>

#include "kernels/combine.h"
#include "kernels/stream_copy.h"
#include "window/cache_line.h"

namespace bluecomm {
namespace {

// Values of this size do not stay in a cache until the reader takes them.
constexpr std::size_t kStreamed = std::size_t{32} << 20;

}  // namespace

struct Mailbox::Layout {
  alignas(kCacheLine) std::atomic<std::uint64_t> word;
  alignas(kCacheLine) std::array<Meta, kSlots> metas;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

std::uint64_t Mailbox::State::pack() const {
  return static_cast<std::uint64_t>(index) | (is_fresh ? 4U : 0U) | (adds ? 8U : 0U) |
         puts << 4;
}

Mailbox::State Mailbox::State::unpack(std::uint64_t word) {
  return {static_cast<std::uint32_t>(word & 3), (word & 4) != 0, (word & 8) != 0,
          word >> 4};
}

std::size_t Mailbox::nbytes_for(std::size_t tensor_nbytes) {
  return sizeof(Layout) + kSlots * whole_lines(tensor_nbytes);
}

Mailbox::Mailbox(std::span<std::byte> memory, std::size_t tensor_nbytes, DType dtype)
    : memory_(memory), tensor_nbytes_(tensor_nbytes), dtype_(dtype) {}

void Mailbox::initialize(std::span<std::byte> memory) {
  auto* const layout = new (memory.data()) Layout{};
  layout->word.store(State{}.pack());
}

Mailbox::Layout& Mailbox::layout() const {
  return *std::launder(reinterpret_cast<Layout*>(memory_.data()));
}

std::atomic<std::uint64_t>& Mailbox::word() const { return layout().word; }

// The index may come from a peer's memory, so an invalid one is mapped to a slot.
Mailbox::Meta& Mailbox::meta(std::uint32_t index) const {
  return layout().metas[index % kSlots];
}

std::span<std::byte> Mailbox::slot(std::uint32_t index) const {
  return memory_.subspan(sizeof(Layout) + index % kSlots * whole_lines(tensor_nbytes_),
                         tensor_nbytes_);
}

// --- Writer --------------------------------------------------------------------------

void MailboxWriter::put(std::span<const std::byte> x, double weight,
                        Mailbox::Meta meta) {
  if (weight == 1.0 && x.size() >= kStreamed) {
    stream_copy(back(), x);
  } else {
    copy_scaled(back(), x, weight, mailbox_.dtype());
  }
  publish_put(meta);
}

void MailboxWriter::publish_put(Mailbox::Meta meta) {
  mailbox_.meta(back_) = meta;
  const Mailbox::State next{back_, true, false, ++puts_};
  back_ = Mailbox::State::unpack(mailbox_.word().exchange(next.pack())).index;
}

void MailboxWriter::accumulate(std::span<const std::byte> x, double weight,
                               Mailbox::Meta meta) {
  if (const auto before = pending()) {
    const std::array<Term, 2> terms{Term{mailbox_.slot(before->slot).data()},
                                    Term{x.data(), weight}};
    // Integers cannot be weighted, so a term of weight 0 is left out.
    const bool adds = weight != 0.0 || is_floating(mailbox_.dtype());
    combine_weighted(back(), std::span(terms).first(adds ? 2 : 1), 1.0,
                     mailbox_.dtype());
    if (publish_sum(*before, meta)) return;
  }
  // No publication is pending (the reader may have just taken it), so this one stands
  // alone.
  copy_scaled(back(), x, weight, mailbox_.dtype());
  publish_add(meta);
}

std::optional<MailboxWriter::Pending> MailboxWriter::pending() const {
  const std::uint64_t word = mailbox_.word().load();
  const auto seen = Mailbox::State::unpack(word);
  if (!seen.is_fresh) return std::nullopt;
  return Pending{word, static_cast<std::uint32_t>(seen.index % Mailbox::kSlots)};
}

bool MailboxWriter::publish_sum(const Pending& pending, Mailbox::Meta meta) {
  const Mailbox::Meta& before = mailbox_.meta(pending.slot);
  mailbox_.meta(back_) = {before.p + meta.p, before.carries_p, meta.signal};
  std::uint64_t word = pending.word;
  const Mailbox::State sum{back_, true, Mailbox::State::unpack(word).adds, puts_};
  if (!mailbox_.word().compare_exchange_strong(word, sum.pack())) return false;
  back_ = pending.slot;
  return true;
}

void MailboxWriter::publish_add(Mailbox::Meta meta) {
  mailbox_.meta(back_) = meta;
  const Mailbox::State alone{back_, true, true, puts_};
  back_ = Mailbox::State::unpack(mailbox_.word().exchange(alone.pack())).index;
}

// --- Reader --------------------------------------------------------------------------

MailboxReader::MailboxReader(Mailbox mailbox,
                             std::shared_ptr<const std::vector<std::byte>> initial)
    : mailbox_(mailbox),
      initial_(std::move(initial)),
      location_(initial_ ? ValueLocation::kInitial : ValueLocation::kZero) {}

MailboxReader::Publication MailboxReader::next() const {
  const auto seen = Mailbox::State::unpack(mailbox_.word().load());
  if (!seen.is_fresh) return Publication::kNone;
  return seen.adds ? Publication::kAdd : Publication::kSet;
}

std::uint64_t MailboxReader::next_signal() const {
  const auto seen = Mailbox::State::unpack(mailbox_.word().load());
  return mailbox_.meta(seen.is_fresh ? seen.index : front_).signal;
}

MailboxReader::Publication MailboxReader::take_next() {
  std::uint64_t word = mailbox_.word().load();
  Mailbox::State seen;
  Mailbox::State taken;
  do {
    seen = Mailbox::State::unpack(word);
    if (!seen.is_fresh) return Publication::kNone;
    // The writer gets the front slot back, so its value is copied first.
    if (seen.adds && location_ == ValueLocation::kFront) copy_to_own();
    taken = {front_, false, false, seen.puts};
  } while (!mailbox_.word().compare_exchange_weak(word, taken.pack()));
  front_ = seen.index;
  puts_taken_ = seen.puts;
  const Mailbox::Meta& meta = mailbox_.meta(front_);
  if (seen.adds) {
    add_front();
    p_ += meta.p;
  } else {
    location_ = ValueLocation::kFront;
    p_ = meta.p + (meta.carries_p ? 0.0 : p_);
  }
  return seen.adds ? Publication::kAdd : Publication::kSet;
}

void MailboxReader::add_front() {
  if (location_ == ValueLocation::kZero) {
    location_ = ValueLocation::kFront;
    return;
  }
  const std::span<const std::byte> before = value();
  own_.resize(mailbox_.tensor_nbytes());
  const std::array<Term, 2> terms{Term{before.data()},
                                  Term{mailbox_.slot(front_).data()}};
  combine_weighted(own_, terms, 1.0, mailbox_.dtype());
  location_ = ValueLocation::kOwn;
  initial_.reset();
}

void MailboxReader::copy_to_own() {
  const std::span<const std::byte> before = value();
  own_.assign(before.begin(), before.end());
  location_ = ValueLocation::kOwn;
}

void MailboxReader::reset(bool with_p) {
  location_ = ValueLocation::kZero;
  if (with_p) p_ = 0.0;
}

void MailboxReader::replace(std::vector<std::byte>& bytes, Mailbox::Meta meta) {
  take();
  own_.swap(bytes);
  location_ = ValueLocation::kOwn;
  if (meta.carries_p) p_ = meta.p;
  ++replaced_;
}

std::span<const std::byte> MailboxReader::value() const {
  switch (location_) {
    case ValueLocation::kZero:
      return {};
    case ValueLocation::kInitial:
      return *initial_;
    case ValueLocation::kFront:
      return mailbox_.slot(front_);
    case ValueLocation::kOwn:
      return own_;
  }
  return {};
}

std::uint64_t MailboxReader::version() const {
  const std::uint64_t puts = Mailbox::State::unpack(mailbox_.word().load()).puts;
  return puts - puts_before_ + replaced_;
}

void MailboxReader::clear_version() {
  puts_before_ = puts_taken_;
  replaced_ = 0;
}

}  // namespace bluecomm
