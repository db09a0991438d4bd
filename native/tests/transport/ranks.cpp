// Drives the ranks of a world in one thread: polls them, and lets them sleep as an
// engine would when none has anything to do. A rank that has news but is woken only by
// the limit of its sleep is a finding: a lost wake-up.
#include "tests/transport/ranks.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/never_free.h"

namespace bluecomm::test {
namespace {

using Clock = std::chrono::steady_clock;

// If ranks that have news sleep this long, nothing has woken them. Even a busy machine
// wakes a rank much sooner.
constexpr std::chrono::seconds kOversleep{2};

std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

void fill(std::span<std::byte> bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    const std::uint64_t word = mix(seed * 0x100000001 + i);
    std::memcpy(&bytes[i], &word, std::min<std::size_t>(8, bytes.size() - i));
  }
}

bool matches(std::span<const std::byte> bytes, std::uint64_t seed) {
  std::vector<std::byte> expected(bytes.size());
  fill(expected, seed);
  return std::equal(bytes.begin(), bytes.end(), expected.begin());
}

Header make_header(std::uint64_t tag, std::size_t nbytes) {
  Header header;
  header.nbytes = nbytes;
  std::memcpy(header.envelope.data(), &tag, sizeof tag);
  fill(std::span(header.envelope).subspan(sizeof tag), tag + 1);
  return header;
}

std::uint64_t tag_of(const Header& header) {
  std::uint64_t tag = 0;
  std::memcpy(&tag, header.envelope.data(), sizeof tag);
  return tag;
}

Reader::Reader(int peer, std::unique_ptr<Incoming> message)
    : peer_(peer), message_(std::move(message)), data_(message_->header().nbytes) {}

void Reader::accept(Mode mode) {
  if (mode == Mode::kInto) into_.resize(data_.size());
  accepted_ = true;
  message_->accept(into_);
}

bool Reader::read(std::size_t step, Findings& findings) {
  bool changed = false;
  while (true) {
    const std::span<const std::byte> bytes = message_->readable();
    const std::size_t end = consumed() + bytes.size();
    if (end > data_.size()) {
      findings.push_back("readable() goes past the end of the payload");
      return false;
    }
    if (bytes.empty()) return changed;
    if (end % kChunkAlignment != 0 && end != data_.size()) {
      findings.push_back("readable() ends at " + std::to_string(end) + " of " +
                         std::to_string(data_.size()) + ", within a chunk");
    }
    const std::size_t n = std::min(step, bytes.size());
    const std::size_t before = consumed();
    std::copy_n(bytes.begin(), n, data_.begin() + static_cast<long>(before));
    message_->consume(n);
    // Bytes of a message that the sender has cancelled are not counted.
    if (consumed() == before) return changed;
    changed = true;
    if (step != SIZE_MAX) return true;
  }
}

void Reader::verify(Findings& findings) const {
  const std::string name =
      "message " + std::to_string(tag()) + " of " + std::to_string(nbytes()) + " bytes";
  if (!done()) {
    findings.push_back(name + ": only " + std::to_string(consumed()) + " arrived");
  } else if (!matches(data_, tag())) {
    findings.push_back(name + ": wrong bytes");
  }
  const Header expected = make_header(tag(), nbytes());
  if (message_->header().envelope != expected.envelope) {
    findings.push_back(name + ": wrong header");
  }
}

Rank::Rank(World& world, int rank)
    : world_(world), rank_(rank), index_(static_cast<std::size_t>(rank)) {}

Rank::~Rank() {
  if (lease_.has_tenants()) never_free(std::move(heap_));
}

Sending Rank::send(int to, std::uint64_t tag, std::size_t nbytes) {
  Sending sending;
  if (world_.allocate) {
    sending.payload = world_.allocate(rank_, nbytes);
  } else {
    sending.payload = heap_.emplace_back(nbytes);
  }
  fill(sending.payload, tag);
  const Header header = make_header(tag, nbytes);
  std::shared_ptr<void> copies;
  sending.message =
      world_.lends ? channel(to).send_to_many(header, sending.payload, copies, lease_)
                   : channel(to).send(header, sending.payload);
  return sending;
}

Sending Rank::send_growing(int to, std::uint64_t tag, std::size_t nbytes) {
  Sending sending;
  sending.payload =
      world_.allocate ? world_.allocate(rank_, nbytes) : heap_.emplace_back(nbytes);
  sending.message = channel(to).send_growing(make_header(tag, nbytes), sending.payload);
  return sending;
}

Reader* Rank::find(std::uint64_t tag) {
  for (const auto& reader : arrived) {
    if (reader && reader->tag() == tag) return reader.get();
  }
  return nullptr;
}

void Rank::on_message(int peer, std::unique_ptr<Incoming> message) {
  arrived.push_back(std::make_unique<Reader>(peer, std::move(message)));
}

void Rank::on_lost(int peer, Status status) {
  ++endings;
  lost[peer] = std::move(status);
}

void Rank::on_goodbye(int peer) {
  ++endings;
  goodbyes.insert(peer);
}

Ranks::Ranks(const Scheme& scheme, int size, Findings& findings)
    : findings_(findings), limit_(scheme.limit), world_(scheme.make_world(size)) {
  for (int rank = 0; rank < size; ++rank) {
    ranks_.push_back(std::make_unique<Rank>(world_, rank));
  }
}

Ranks::~Ranks() = default;

bool Ranks::poll_once() {
  bool changed = false;
  for (const auto& rank : ranks_) {
    if (rank->alive()) changed |= rank->poll();
  }
  return changed;
}

void Ranks::sleep(Clock::time_point limit) {
  std::vector<pollfd> fds;
  bool idle = true;
  for (const auto& rank : ranks_) {
    if (!rank->alive()) continue;
    Transport& transport = rank->transport();
    idle &= transport.prepare_sleep();
    limit = std::min(limit, transport.next_timer());
    fds.push_back({transport.wait_fd(), POLLIN, 0});
  }
  const auto time = std::chrono::ceil<std::chrono::milliseconds>(limit - Clock::now());
  overslept_ = false;
  if (idle && time.count() > 0) {
    const int called = ::poll(fds.data(), fds.size(), static_cast<int>(time.count()));
    bool timer_was_due = false;
    for (const auto& rank : ranks_) {
      timer_was_due |= rank->alive() && rank->transport().next_timer() <= Clock::now();
    }
    overslept_ = called == 0 && !timer_was_due;
  }
  for (const auto& rank : ranks_) {
    if (rank->alive()) rank->transport().finish_sleep();
  }
}

bool Ranks::drive(std::string_view what, const std::function<bool()>& done) {
  return drive(what, done, true);
}

bool Ranks::spin(std::string_view what, const std::function<bool()>& done) {
  return drive(what, done, false);
}

bool Ranks::drive(std::string_view what, const std::function<bool()>& done,
                  bool may_sleep) {
  const Clock::time_point deadline = Clock::now() + limit_;
  overslept_ = false;
  while (!done()) {
    if (Clock::now() > deadline) {
      findings_.push_back("not within the time limit: " + std::string(what));
      return false;
    }
    if (poll_once()) {
      if (overslept_) findings_.push_back("lost wake-up: " + std::string(what));
      overslept_ = false;
      continue;
    }
    if (may_sleep && !done()) sleep(Clock::now() + kOversleep);
  }
  return true;
}

void Ranks::drive_for(std::chrono::milliseconds time) {
  const Clock::time_point end = Clock::now() + time;
  while (Clock::now() < end) {
    if (!poll_once()) sleep(end);
  }
  overslept_ = false;
}

Reader* Ranks::await(int rank, std::uint64_t tag) {
  Reader* reader = nullptr;
  drive("header of message " + std::to_string(tag),
        [&] { return (reader = (*this)[rank].find(tag)) != nullptr; });
  return reader;
}

void Ranks::read_all(Reader& reader, std::size_t step) {
  if (!reader.accepted()) reader.accept(Reader::Mode::kViews);
  drive("payload of message " + std::to_string(reader.tag()), [&] {
    while (reader.read(step, findings_)) {
    }
    return reader.done();
  });
  reader.verify(findings_);
}

void connect(World& world) {
  const std::size_t size = world.transports.size();
  world.channels.assign(size, std::vector<Channel*>(size, nullptr));
  for (std::size_t from = 0; from < size; ++from) {
    for (std::size_t to = 0; to < size; ++to) {
      if (from == to) continue;
      world.channels[from][to] = &world.transports[from]->channel(
          static_cast<int>(to), world.transports[to]->offer());
    }
  }
}

Findings run_check(const Check& check, const Scheme& scheme) {
  Findings findings;
  try {
    check.run(scheme, findings);
  } catch (const std::exception& error) {
    findings.push_back(std::string("threw: ") + error.what());
  }
  return findings;
}

Scheme with_fault(const Scheme& scheme, Fault fault) {
  return {[scheme, fault](int size) {
            World world = scheme.make_world(size);
            for (auto& transport : world.transports) {
              transport = make_faulty(std::move(transport), fault);
            }
            connect(world);
            return world;
          },
          scheme.eager_bytes, fault == Fault::kLostChunk ? 1000ms : scheme.limit};
}

}  // namespace bluecomm::test
