// Checks of messages between ranks that stay connected.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "tests/transport/conformance.h"
#include "tests/transport/ranks.h"

namespace bluecomm::test {
namespace {

std::vector<std::size_t> sizes_to_try(const Scheme& scheme) {
  std::vector<std::size_t> sizes = {0, 1, 63, 64, 65, 4095, 4096, 65535, 65536, 65537};
  for (const std::size_t size : {scheme.eager_bytes, std::size_t{256} << 10}) {
    sizes.insert(sizes.end(), {size - 1, size, size + 1});
  }
  sizes.push_back((5 << 20) + 13);
  return sizes;
}

// Returns a random size; few are large.
std::size_t random_size(std::mt19937_64& random) {
  const std::size_t limits[] = {0, 8, 64, 1000, 5000, 5000, 70'000, 600'000};
  const std::size_t limit = limits[random() % std::size(limits)];
  return random() % (limit + 1);
}

bool all_done(const std::vector<Sending>& sendings) {
  return std::all_of(sendings.begin(), sendings.end(),
                     [](const Sending& sending) { return sending.done(); });
}

}  // namespace

void check_payload_sizes(const Scheme& scheme, Findings& findings) {
  Ranks ranks(scheme, 2, findings);
  std::uint64_t tag = 1;
  for (const auto mode : {Reader::Mode::kViews, Reader::Mode::kInto}) {
    for (const std::size_t nbytes : sizes_to_try(scheme)) {
      const Sending sending = ranks[0].send(1, tag, nbytes);
      Reader* reader = ranks.await(1, tag);
      if (!reader) return;
      if (reader->peer() != 0 || reader->nbytes() != nbytes) {
        findings.push_back("message from " + std::to_string(reader->peer()) + " of " +
                           std::to_string(reader->nbytes()) +
                           " bytes, expected 0 and " + std::to_string(nbytes));
        return;
      }
      reader->accept(mode);
      ranks.read_all(*reader);
      ranks.drive("release of " + std::to_string(nbytes) + " bytes",
                  [&] { return sending.done(); });
      ++tag;
    }
  }
}

void check_steps(const Scheme& scheme, Findings& findings) {
  std::mt19937_64 random(3);
  for (const auto mode : {Reader::Mode::kViews, Reader::Mode::kInto}) {
    Ranks ranks(scheme, 2, findings);
    const Sending sending = ranks[0].send(1, 5, (3 << 20) + 17);
    Reader* reader = ranks.await(1, 5);
    if (!reader) return;
    reader->accept(mode);
    // Takes one step between two polls and, now and then, many.
    ranks.spin("odd steps", [&] {
      for (std::size_t left = random() % 64; left > 0; --left) {
        if (!reader->read(1 + random() % 9000, findings)) break;
      }
      if (sending.message->released() > reader->nbytes()) {
        findings.push_back("released() is more than the payload");
      }
      return reader->done();
    });
    reader->verify(findings);
    ranks.drive("release", [&] { return sending.done(); });
    if (!findings.empty()) return;
  }
}

void check_many_in_flight(const Scheme& scheme, Findings& findings) {
  constexpr int kMessages = 600;
  std::mt19937_64 random(7);
  Ranks ranks(scheme, 2, findings);
  std::vector<Sending> sendings;
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    sendings.push_back(ranks[0].send(1, 2 * i, random_size(random)));
    sendings.push_back(ranks[1].send(0, 2 * i + 1, random_size(random)));
  }
  ranks.drive("all headers", [&] {
    return ranks[0].arrived.size() == kMessages && ranks[1].arrived.size() == kMessages;
  });
  for (const int rank : {0, 1}) {
    auto& arrived = ranks[rank].arrived;
    const auto by_tag = [](const auto& a, const auto& b) {
      return a->tag() < b->tag();
    };
    if (!std::is_sorted(arrived.begin(), arrived.end(), by_tag)) {
      findings.push_back("headers did not arrive in the order of the sends");
    }
    std::shuffle(arrived.begin(), arrived.end(), random);
    for (const auto& reader : arrived) {
      reader->accept(random() % 2 == 0 ? Reader::Mode::kViews : Reader::Mode::kInto);
    }
  }
  ranks.spin("all payloads", [&] {
    bool done = true;
    for (const int rank : {0, 1}) {
      for (const auto& reader : ranks[rank].arrived) {
        reader->read(1 + random() % 300'000, findings);
        done &= reader->done();
      }
    }
    return done && all_done(sendings);
  });
  for (const int rank : {0, 1}) {
    for (const auto& reader : ranks[rank].arrived) reader->verify(findings);
  }
}

// Leaves more messages unaccepted than any buffer holds; a later message must still
// pass.
void check_unaccepted(const Scheme& scheme, Findings& findings) {
  Ranks ranks(scheme, 2, findings);
  std::vector<Sending> sendings;
  std::uint64_t tag = 1;
  for (int i = 0; i < 24; ++i) sendings.push_back(ranks[0].send(1, tag++, 1 << 20));
  for (int i = 0; i < 800; ++i) {
    sendings.push_back(ranks[0].send(1, tag++, scheme.eager_bytes));
  }
  sendings.push_back(ranks[0].send(1, tag, 300'000));
  Reader* last = ranks.await(1, tag);
  if (!last) return;
  ranks.read_all(*last, 10'000);
  ranks.drive("release of the last", [&] { return sendings.back().done(); });
  for (const auto& reader : ranks[1].arrived) {
    if (reader.get() != last) ranks.read_all(*reader);
  }
  ranks.drive("release of all", [&] { return all_done(sendings); });
}

void check_unconsumed(const Scheme& scheme, Findings& findings) {
  constexpr std::uint64_t kStuck = 48;
  Ranks ranks(scheme, 3, findings);
  std::vector<Sending> sendings;
  for (std::uint64_t tag = 0; tag < kStuck; ++tag) {
    sendings.push_back(ranks[0].send(1, tag, 1 << 20));
    if (Reader* reader = ranks.await(1, tag)) reader->accept(Reader::Mode::kViews);
  }
  ranks.drive_for(20ms);
  for (const int to : {1, 2}) {
    const std::uint64_t tag = kStuck + static_cast<std::uint64_t>(to);
    sendings.push_back(ranks[0].send(to, tag, 2 << 20));
    if (Reader* reader = ranks.await(to, tag)) ranks.read_all(*reader, 100'000);
  }
  for (const auto& reader : ranks[1].arrived) {
    if (reader->tag() < kStuck) ranks.read_all(*reader);
  }
  ranks.drive("release of all", [&] { return all_done(sendings); });
}

// The sender overwrites its memory as soon as released() covers it.
void check_released(const Scheme& scheme, Findings& findings) {
  std::mt19937_64 random(11);
  Ranks ranks(scheme, 2, findings);
  std::vector<Sending> sendings;
  std::vector<std::size_t> scribbled;
  for (std::uint64_t tag = 0; tag < 40; ++tag) {
    sendings.push_back(
        ranks[0].send(1, tag, random() % (tag % 4 == 0 ? 2'000'000 : 9000)));
    scribbled.push_back(0);
  }
  ranks.spin("all, with a scribbling writer", [&] {
    bool done = ranks[1].arrived.size() == sendings.size();
    for (const auto& reader : ranks[1].arrived) {
      if (!reader->accepted() && random() % 8 == 0) {
        reader->accept(random() % 2 == 0 ? Reader::Mode::kViews : Reader::Mode::kInto);
      } else if (reader->accepted() && random() % 2 == 0) {
        reader->read(1 + random() % 100'000, findings);
      }
      done &= reader->done();
    }
    for (std::size_t i = 0; i < sendings.size(); ++i) {
      const std::size_t released = sendings[i].message->released();
      if (released < scribbled[i]) findings.push_back("released() shrank");
      for (; scribbled[i] < released; ++scribbled[i]) {
        sendings[i].payload[scribbled[i]] ^= std::byte{0xff};
      }
      done &= sendings[i].done();
    }
    return done;
  });
  for (const auto& reader : ranks[1].arrived) reader->verify(findings);
}

void check_growing(const Scheme& scheme, Findings& findings) {
  std::mt19937_64 random(13);
  Ranks ranks(scheme, 2, findings);
  std::uint64_t tag = 1;
  for (const std::size_t nbytes : sizes_to_try(scheme)) {
    for (const auto mode : {Reader::Mode::kViews, Reader::Mode::kInto}) {
      const Sending sending = ranks[0].send_growing(1, ++tag, nbytes);
      if (!sending.message) continue;
      // A complete message passes a growing one.
      const Sending other = ranks[0].send(1, ++tag, 100'000);
      Reader* const passing = ranks.await(1, tag);
      Reader* const reader = ranks.await(1, tag - 1);
      if (!reader || !passing) return;
      reader->accept(mode);
      passing->accept(mode);
      ranks.read_all(*passing);
      std::vector<std::byte> payload(nbytes);
      fill(payload, tag - 1);
      for (std::size_t done = 0; done < nbytes;) {
        const std::size_t blocks = 1 + random() % 5000;
        const std::size_t end = std::min(nbytes, done + blocks * kChunkAlignment);
        std::copy_n(payload.begin() + static_cast<long>(done), end - done,
                    sending.payload.begin() + static_cast<long>(done));
        sending.message->grow(end);
        done = end;
        ranks.drive("the prefix of a growing payload", [&] {
          reader->read(SIZE_MAX, findings);
          return reader->consumed() == done;
        });
        if (!findings.empty()) return;
      }
      reader->verify(findings);
      ranks.drive("release of a growing payload", [&] { return sending.done(); });
    }
  }
  // Either end may give up.
  for (const bool sender_cancels : {true, false}) {
    Sending sending = ranks[0].send_growing(1, ++tag, 600'000);
    if (!sending.message) return;
    Reader* reader = ranks.await(1, tag);
    if (!reader) return;
    reader->accept(Reader::Mode::kViews);
    sending.message->grow(64);
    ranks.drive("a first piece", [&] {
      reader->read(SIZE_MAX, findings);
      return reader->consumed() == 64;
    });
    if (sender_cancels) {
      sending.message.reset();
    } else {
      ranks[1].arrived.pop_back();
      ranks.drive("release after a refusal", [&] { return sending.done(); });
      sending.message->grow(600'000);
    }
    const Sending next = ranks[0].send(1, ++tag, 70'000);
    reader = ranks.await(1, tag);
    if (!reader) return;
    reader->accept(Reader::Mode::kViews);
    ranks.read_all(*reader);
  }
}

void check_post(const Scheme& scheme, Findings& findings) {
  constexpr std::uint64_t kMessages = 1500;
  World world = scheme.make_world(2);
  Rank sender(world, 0);
  Rank receiver(world, 1);
  std::vector<std::byte> payload;
  std::vector<Sending> sendings;
  for (std::uint64_t tag = 0; tag < kMessages; ++tag) {
    if (tag % 16 == 0) {
      sendings.push_back(sender.send(1, tag, 500 * tag));
      continue;
    }
    payload.resize(tag % (Channel::kMaxPost + 1));
    fill(payload, tag);
    world.channel(0, 1).post(make_header(tag, payload.size()), payload);
    std::fill(payload.begin(), payload.end(), std::byte{0});
  }
  const auto deadline = std::chrono::steady_clock::now() + scheme.limit;
  std::size_t done = 0;
  while (done < kMessages && std::chrono::steady_clock::now() < deadline) {
    sender.poll();
    receiver.poll();
    done = 0;
    for (const auto& reader : receiver.arrived) {
      if (!reader->accepted()) reader->accept(Reader::Mode::kViews);
      reader->read(SIZE_MAX, findings);
      done += reader->done();
    }
  }
  if (done < kMessages) findings.push_back("posts did not arrive in time");
  for (std::size_t i = 0; i < receiver.arrived.size(); ++i) {
    if (receiver.arrived[i]->tag() != i) findings.push_back("posts in the wrong order");
    receiver.arrived[i]->verify(findings);
  }
}

void check_both_dial(const Scheme& scheme, Findings& findings) {
  for (int round = 0; round < 20; ++round) {
    Ranks ranks(scheme, 3, findings);
    std::vector<Sending> sendings;
    for (int from = 0; from < 3; ++from) {
      for (int to = 0; to < 3; ++to) {
        if (from == to) continue;
        for (std::uint64_t i = 0; i < 3; ++i) {
          const auto tag = static_cast<std::uint64_t>(from * 10 + to) * 10 + i;
          sendings.push_back(ranks[from].send(to, tag, i * 50'000));
        }
        // The ranks are at different stages when the next one connects.
        for (int polls = round % 5; polls > 0; --polls) ranks[from].poll();
      }
    }
    for (int to = 0; to < 3; ++to) {
      ranks.drive("messages of both sides",
                  [&] { return ranks[to].arrived.size() == 6; });
      for (const auto& reader : ranks[to].arrived) ranks.read_all(*reader);
    }
    ranks.drive("release", [&] { return all_done(sendings); });
    if (!findings.empty()) return;
  }
}

void check_stats(const Scheme& scheme, Findings& findings) {
  Ranks ranks(scheme, 2, findings);
  const Sending small = ranks[0].send(1, 1, 100);
  const Sending large = ranks[0].send(1, 2, 1'000'000);
  for (const std::uint64_t tag : {1, 2}) {
    if (Reader* reader = ranks.await(1, tag)) ranks.read_all(*reader);
  }
  const ChannelStats sent = ranks[0].channel(1).stats();
  const ChannelStats received = ranks[1].channel(0).stats();
  if (sent.messages_sent != 2 || sent.bytes_sent != 1'000'100) {
    findings.push_back("stats of the sender: " + std::to_string(sent.messages_sent) +
                       " messages, " + std::to_string(sent.bytes_sent) + " bytes");
  }
  if (received.messages_received != 2 || received.bytes_received != 1'000'100) {
    findings.push_back(
        "stats of the receiver: " + std::to_string(received.messages_received) +
        " messages, " + std::to_string(received.bytes_received) + " bytes");
  }
}

}  // namespace bluecomm::test
