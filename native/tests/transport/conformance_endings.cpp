// Checks of messages that are cancelled, and of ranks that close, fail or are
// forgotten.
#include <algorithm>

#include "tests/transport/conformance.h"
#include "tests/transport/ranks.h"

namespace bluecomm::test {
namespace {

constexpr std::size_t kLarge = 4 << 20;

// Checks that the link still works in both directions.
void exchange(Ranks& ranks, std::uint64_t tag) {
  for (const int from : {0, 1}) {
    const Sending sending = ranks[from].send(1 - from, tag, kLarge / 2);
    if (Reader* reader = ranks.await(1 - from, tag)) ranks.read_all(*reader);
    ranks.drive("release", [&] { return sending.done(); });
  }
}

void expect(bool condition, const char* text, Findings& findings) {
  if (!condition) findings.push_back(text);
}

}  // namespace

void check_sender_cancels(const Scheme& scheme, Findings& findings) {
  Ranks ranks(scheme, 2, findings);
  std::uint64_t tag = 100;
  for (const std::size_t read_before : {std::size_t{0}, std::size_t{1}, kLarge / 2}) {
    for (const bool accept : {false, true}) {
      ++tag;
      Sending sending = ranks[0].send(1, tag, kLarge);
      Reader* reader = ranks.await(1, tag);
      if (!reader) return;
      if (accept) reader->accept(Reader::Mode::kViews);
      ranks.spin("bytes before the sender cancels", [&] {
        if (accept) reader->read(kChunkAlignment, findings);
        return !accept || reader->consumed() >= read_before;
      });
      const auto shown = reader->message().readable();
      sending.message.reset();
      std::fill(sending.payload.begin(), sending.payload.end(), std::byte{0});
      // With 1, the receiver knows of the cancellation before it reads on; otherwise it
      // may not know of it yet.
      if (read_before == 1) ranks.drive_for(2ms);
      const auto shown_still = reader->message().readable();
      expect(shown.empty() || (shown_still.data() == shown.data() &&
                               shown_still.size() >= shown.size()),
             "bytes already shown moved when the sender cancelled", findings);
      if (!accept) reader->accept(Reader::Mode::kViews);
      // Bytes that were readable before must not complete the message now, either.
      for (int i = 0; i < 20; ++i) {
        while (reader->read(kLarge / 4, findings)) {
        }
        ranks.drive_for(1ms);
      }
      expect(!reader->done(), "a cancelled message completed", findings);
      exchange(ranks, 1000 + tag);
    }
  }
  // Cancels a message that nobody has seen yet.
  ranks[0].send(1, 1, kLarge);
  exchange(ranks, 2);
}

void check_receiver_cancels(const Scheme& scheme, Findings& findings) {
  Ranks ranks(scheme, 2, findings);
  std::uint64_t tag = 100;
  for (const std::size_t nbytes : {std::size_t{0}, std::size_t{9}, kLarge}) {
    for (const bool accept : {false, true}) {
      ++tag;
      const Sending sending = ranks[0].send(1, tag, nbytes);
      if (!ranks.await(1, tag)) return;
      std::unique_ptr<Reader> reader = std::move(ranks[1].arrived.back());
      ranks[1].arrived.pop_back();
      if (accept) {
        reader->accept(Reader::Mode::kViews);
        ranks.spin("bytes before the receiver discards", [&] {
          reader->read(1000, findings);
          return reader->consumed() >= std::min<std::size_t>(nbytes, 100'000);
        });
      }
      reader.reset();
      ranks.drive("release of a discarded message", [&] { return sending.done(); });
      exchange(ranks, 1000 + tag);
    }
  }
}

void check_close(const Scheme& scheme, Findings& findings) {
  Ranks ranks(scheme, 3, findings);
  exchange(ranks, 1);
  const Sending large = ranks[0].send(1, 2, kLarge);
  const Sending small = ranks[0].send(1, 3, 10);
  Transport& closing = ranks[0].transport();
  closing.close();
  const Sending refused = ranks[0].send(1, 4, 10);
  ranks.drive_for(20ms);
  expect(!closing.closed(), "closed() before the last message was read", findings);
  for (const std::uint64_t tag : {2, 3}) {
    if (Reader* reader = ranks.await(1, tag)) ranks.read_all(*reader);
  }
  ranks.drive("closed()", [&] { return closing.closed(); });
  ranks.drive("goodbye", [&] { return ranks[1].goodbyes.contains(0); });
  expect(refused.message->released() == 0, "a message was sent after close()",
         findings);
  expect(!ranks[1].find(4), "a message sent after close() arrived", findings);
  ranks[0].free_transport();
  ranks.drive_for(20ms);
  ranks[1].transport().close();
  ranks.drive("closed() without a peer", [&] { return ranks[1].transport().closed(); });
  ranks[2].transport().close();
  ranks.drive("closed() of an idle rank",
              [&] { return ranks[2].transport().closed(); });
  expect(ranks[1].endings == 1 && ranks[1].lost.empty(), "goodbye and loss", findings);
  expect((ranks[2].endings > 0) == scheme.tells_idle_ranks,
         "which endings reached an idle rank", findings);
}

void check_lost(const Scheme& scheme, Findings& findings) {
  Ranks ranks(scheme, 3, findings);
  exchange(ranks, 1);
  const Sending other = ranks[2].send(1, 2, kLarge);
  const Sending eager = ranks[0].send(1, 3, 64);
  Sending large = ranks[0].send(1, 4, kLarge);
  Reader* reader = ranks.await(1, 3);
  const Sending to_lost = ranks[1].send(0, 5, kLarge);
  ranks.drive_for(5ms);
  large.message.reset();
  ranks[0].free_transport();
  ranks.drive("on_lost", [&] { return ranks[1].lost.contains(0); });
  const Sending late = ranks[1].send(0, 6, 10);
  ranks[1].channel(0).post(make_header(7, 0), {});
  ranks.drive_for(20ms);
  if (reader) ranks.read_all(*reader);
  if (Reader* unharmed = ranks.await(1, 2)) ranks.read_all(*unharmed);
  expect(ranks[1].endings == 1, "an ending was reported twice", findings);
  const Status& status = ranks[1].lost[0];
  expect(status.code == Code::kPeerLost && status.rank == 0 && !status.text.empty(),
         "on_lost does not say who and how", findings);
  expect(late.message->released() == 0, "sent on a lost channel", findings);
  expect(to_lost.message->released() == 0, "released on a lost channel", findings);
  ranks[1].transport().close();
  ranks.drive("closed() after a loss", [&] { return ranks[1].transport().closed(); });
}

void check_forget(const Scheme& scheme, Findings& findings) {
  Ranks ranks(scheme, 3, findings);
  exchange(ranks, 1);
  const Sending eager = ranks[0].send(1, 2, 64);
  ranks.await(1, 2);
  ranks[1].transport().forget(0);
  ranks[1].transport().forget(2);  // never used
  const Sending late = ranks[1].send(0, 3, 10);
  ranks.drive("loss at the forgotten peer", [&] { return ranks[0].lost.contains(1); });
  ranks.drive_for(10ms);
  expect(ranks[1].endings == 0, "an ending of a forgotten peer was reported", findings);
  expect(late.message->released() == 0, "sent to a forgotten peer", findings);
  if (Reader* reader = ranks[1].find(2)) ranks.read_all(*reader);
}

// Outgoing and Incoming messages may be destroyed after their transport.
void check_outlives(const Scheme& scheme, Findings& findings) {
  Ranks ranks(scheme, 2, findings);
  std::vector<Sending> sendings;
  for (const std::size_t nbytes : {std::size_t{0}, std::size_t{64}, kLarge}) {
    sendings.push_back(ranks[0].send(1, nbytes, nbytes));
    if (Reader* reader = ranks.await(1, nbytes)) {
      reader->accept(Reader::Mode::kViews);
    }
  }
  ranks.drive_for(5ms);
  ranks[0].free_transport();
  ranks[1].free_transport();
  for (const auto& reader : ranks[1].arrived) reader->read(1, findings);
  for (const Sending& sending : sendings) {
    expect(sending.message->released() <= sending.payload.size(), "released()",
           findings);
  }
}

}  // namespace bluecomm::test
