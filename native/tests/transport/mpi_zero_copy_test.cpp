// Zero-copy sends, whose payload MPI reads from the caller's memory, over a fake MPI
// that the test holds up.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/check.h"
#include "tests/engine/engine_world.h"
#include "tests/transport/conformance.h"
#include "tests/transport/fake_mpi.h"
#include "tests/transport/ranks.h"
#include "transport/mpi/transport.h"

namespace bluecomm::test {
namespace {

constexpr std::size_t kEagerBytes = 4096;
constexpr std::size_t kLargeBytes = 1 << 20;
constexpr std::size_t kChunks = kLargeBytes / mpi::kChunkBytes;

Scheme scheme_over(const std::shared_ptr<FakeMpi>& fake) {
  return {.make_world =
              [fake](int size) {
                World world;
                world.lends = true;
                const auto session = FakeMpi::make_session(fake);
                for (int rank = 0; rank < size; ++rank) {
                  world.transports.push_back(std::make_unique<MpiTransport>(
                      MpiOptions{rank, session, kEagerBytes}));
                }
                connect(world);
                return world;
              },
          .eager_bytes = kEagerBytes,
          .tells_idle_ranks = true};
}

// Two ranks over an MPI that can be held up.
struct Two {
  ~Two() {
    for (const std::string& finding : findings) record_failure("ranks", 0, finding);
  }

  // Sends kLargeBytes bytes from rank 0 to rank 1.
  std::unique_ptr<Outgoing> send(std::uint64_t tag) {
    std::shared_ptr<void> copies;
    fill(payload, tag);
    return ranks[0].channel(1).send_to_many(make_header(tag, kLargeBytes), payload,
                                            copies, lease);
  }

  // Waits until all messages have arrived, by sending one more and waiting for it.
  void settle() {
    for (const int from : {0, 1}) {
      const Sending sending = ranks[from].send(1 - from, 8, 10);
      if (Reader* last = ranks.await(1 - from, 8)) ranks.read_all(*last);
      ranks[1 - from].arrived.pop_back();
    }
  }

  std::shared_ptr<FakeMpi> fake = std::make_shared<FakeMpi>();
  Findings findings;
  Ranks ranks{scheme_over(fake), 2, findings};
  std::vector<std::byte> payload = std::vector<std::byte>(kLargeBytes);
  Lease lease;
};

// Rank 1 has asked for the whole payload, and MPI moves nothing yet.
struct ZeroCopyFixture : Two {
  ZeroCopyFixture() {
    fake->hold();
    outgoing = send(7);
    reader = ranks.await(1, 7);
    if (reader == nullptr) return;
    reader->accept(Reader::Mode::kViews);
    ranks.drive("chunks in the hands of MPI",
                [&] { return fake->held().size() == kChunks; });
  }

  std::unique_ptr<Outgoing> outgoing;
  Reader* reader = nullptr;
};

// Rank 1 has asked for nothing. MPI tells it of early chunks but moves none.
struct EarlyFixture : Two {
  EarlyFixture() {
    exchange(6);
    fake->hold();
    outgoing = send(7);
    CHECK_EQ(fake->held().size(), kChunks);
  }

  void exchange(std::uint64_t tag) {
    const std::unique_ptr<Outgoing> sending = send(tag);
    if (Reader* all = ranks.await(1, tag)) ranks.read_all(*all);
    ranks.drive("the release", [&] { return sending->released() == kLargeBytes; });
    settle();
    CHECK(!lease.has_tenants());
  }

  std::unique_ptr<Outgoing> outgoing;
};

// Runs the checks of the suite that concern memory and endings, without any MPI
// installed.
TEST(mpi_zero_copy, passes_checks_of_the_suite) {
  const Scheme scheme = scheme_over(std::make_shared<FakeMpi>());
  for (const auto check : {check_payload_sizes, check_steps, check_released,
                           check_sender_cancels, check_receiver_cancels, check_close,
                           check_lost, check_forget, check_outlives}) {
    for (const std::string& finding : run_check({"", check}, scheme)) {
      record_failure("suite", 0, finding);
    }
  }
}

TEST(mpi_zero_copy, sends_from_the_payload_and_seals_it_when_mpi_has_read_it) {
  ZeroCopyFixture at;
  for (const std::span<const std::byte> chunk : at.fake->held()) {
    CHECK(chunk.data() >= at.payload.data() &&
          chunk.data() + chunk.size() <= at.payload.data() + kLargeBytes);
  }
  CHECK_EQ(at.outgoing->released(), 0U);
  at.fake->hold(kChunks - 1);
  const std::size_t first = (kChunks - 1) * mpi::kChunkBytes;
  at.ranks.spin("all chunks but one", [&] {
    at.reader->read(SIZE_MAX, at.findings);
    return at.reader->consumed() == first && at.outgoing->released() == first;
  });
  CHECK(at.lease.has_tenants());
  at.fake->let_through();
  at.ranks.read_all(*at.reader);
  at.ranks.drive("the release", [&] { return at.outgoing->released() == kLargeBytes; });
  CHECK(!at.lease.has_tenants());
}

TEST(mpi_zero_copy, a_cancelled_payload_may_change_and_never_completes) {
  ZeroCopyFixture at;
  at.outgoing.reset();
  CHECK(at.lease.has_tenants());
  std::fill(at.payload.begin(), at.payload.end(), std::byte{0});
  at.fake->let_through();
  at.ranks.spin("the last chunk", [&] {
    at.reader->read(SIZE_MAX, at.findings);
    return at.reader->consumed() == mpi::before_seal(kLargeBytes);
  });
  at.ranks.drive("the end of the lease", [&] { return !at.lease.has_tenants(); });
  at.settle();
  at.reader->read(SIZE_MAX, at.findings);
  CHECK(!at.reader->done());
}

// The receiver discards the message. The payload is released when MPI has read it, not
// before.
void discard(Two& at, const Outgoing& outgoing) {
  at.ranks[1].arrived.clear();
  at.settle();
  CHECK_EQ(outgoing.released(), 0U);
  at.fake->let_through();
  at.ranks.drive("the release", [&] { return outgoing.released() == kLargeBytes; });
  CHECK(!at.lease.has_tenants());
}

TEST(mpi_zero_copy, a_discarded_payload_is_released_when_mpi_has_read_it) {
  ZeroCopyFixture at;
  discard(at, *at.outgoing);
}

TEST(mpi_zero_copy, a_lost_link_leaves_the_payload_to_mpi) {
  ZeroCopyFixture at;
  at.ranks[0].transport().forget(1);
  at.ranks.drive("the loss", [&] { return at.ranks[1].lost.contains(0); });
  at.outgoing.reset();
  CHECK(at.lease.has_tenants());
  at.fake->let_through();
  at.ranks.drive("the end of the lease", [&] { return !at.lease.has_tenants(); });
  CHECK_EQ(at.reader->consumed(), 0U);
}

TEST(mpi_zero_copy, the_session_keeps_what_a_transport_leaves) {
  ZeroCopyFixture at;
  at.ranks[0].free_transport();
  at.outgoing.reset();
  CHECK(at.lease.has_tenants());
}

TEST(mpi_zero_copy, nothing_is_called_or_freed_after_mpi_is_finalized) {
  ZeroCopyFixture at;
  at.fake->end();
  at.ranks.drive("the loss", [&] { return at.ranks[0].lost.contains(1); });
  at.outgoing.reset();
  at.ranks[0].free_transport();
  CHECK(at.lease.has_tenants());
}

TEST(mpi_zero_copy, a_transport_releases_mpi_before_it_is_finalized) {
  ZeroCopyFixture at;
  at.fake->before_finalize([&at] {
    at.ranks[0].transport().release_backend();
    at.ranks.drive("the news", [&] { return at.ranks[1].lost.contains(0); });
    at.ranks[1].transport().release_backend();
  });
  at.fake->finalize();
  const std::string told = at.ranks[1].lost[0].text;
  CHECK(told.find("its program has called MPI_Finalize") != told.npos);
  at.ranks.drive("the loss", [&] { return at.ranks[0].lost.contains(1); });
  at.outgoing.reset();
  CHECK(at.lease.has_tenants());
  for (const int rank : {0, 1}) at.ranks[rank].free_transport();
  CHECK(at.lease.has_tenants());
  CHECK_EQ(at.fake->late_calls(), 0);
}

TEST(mpi_zero_copy, early_chunks_arrive_when_they_are_asked_for) {
  EarlyFixture at;
  at.fake->let_through();
  Reader* const reader = at.ranks.await(1, 7);
  at.settle();
  CHECK_EQ(at.outgoing->released(), 0U);
  at.ranks.read_all(*reader);
  at.ranks.drive("the release", [&] { return at.outgoing->released() == kLargeBytes; });
  CHECK(!at.lease.has_tenants());
}

TEST(mpi_zero_copy, the_number_of_early_messages_is_limited) {
  EarlyFixture at;
  std::vector<std::unique_ptr<Outgoing>> more;
  for (int i = 0; i < mpi::kEarlyTags; ++i) more.push_back(at.send(8));
  CHECK_EQ(at.fake->held().size(), mpi::kEarlyTags * kChunks);
  at.fake->let_through();
  at.settle();
  for (const auto& reader : at.ranks[1].arrived) {
    if (!reader->accepted()) reader->accept(Reader::Mode::kViews);
  }
  at.ranks.spin("all of them", [&] {
    for (const auto& reader : at.ranks[1].arrived) reader->read(SIZE_MAX, at.findings);
    return more.back()->released() == kLargeBytes;
  });
  CHECK(!at.lease.has_tenants());
  // The tags of these messages are free again.
  at.fake->hold();
  const std::unique_ptr<Outgoing> last = at.send(9);
  CHECK_EQ(at.fake->held().size(), kChunks);
}

TEST(mpi_zero_copy, early_chunks_of_a_cancelled_payload_are_received) {
  EarlyFixture at;
  Reader* const reader = at.ranks.await(1, 7);
  at.outgoing.reset();
  CHECK(at.lease.has_tenants());
  at.fake->let_through();
  at.ranks.drive("the end of the lease", [&] { return !at.lease.has_tenants(); });
  reader->accept(Reader::Mode::kViews);
  at.settle();
  CHECK(!reader->read(SIZE_MAX, at.findings));
  at.exchange(8);
}

TEST(mpi_zero_copy, early_chunks_of_a_discarded_payload_are_received) {
  EarlyFixture at;
  at.ranks.await(1, 7);
  discard(at, *at.outgoing);
  at.exchange(8);
}

TEST(mpi_zero_copy, early_chunks_are_received_when_the_receiver_ends) {
  EarlyFixture at;
  at.ranks.await(1, 7);
  at.fake->let_through();
  at.ranks[1].free_transport();
  at.ranks.drive("the loss", [&] { return at.ranks[0].lost.contains(1); });
  at.ranks.drive("the end of the lease", [&] { return !at.lease.has_tenants(); });
}

// After the loss, no receives of further chunks are started.
TEST(mpi_zero_copy, a_lost_peer_holds_up_no_shutdown) {
  EarlyFixture at;
  at.ranks[1].transport().forget(0);
  at.ranks.drive("the loss", [&] { return at.ranks[0].lost.contains(1); });
  at.ranks[0].transport().close();
  at.ranks.drive("closed()", [&] { return at.ranks[0].transport().closed(); });
  CHECK(at.lease.has_tenants());
}

// Two engines, and an operation of rank 0 that fails while MPI reads its input.
struct FailedOperation {
  FailedOperation() {
    fake->hold();
    Engine& other = world.engine(1);
    theirs = other.submit(make_call(other, Kind::kBroadcast, "x", input, output));
    Engine& engine = world.engine(0);
    id = engine.submit(make_call(engine, Kind::kBroadcast, "x", input, own));
    await([&] { return !fake->held().empty(); });
    engine.fail(id, {Code::kMismatch, "enough", 0});
    CHECK_EQ(engine.wait(id, Clock::now() + kDeadline)->text, "enough");
  }

  std::shared_ptr<FakeMpi> fake = std::make_shared<FakeMpi>();
  std::shared_ptr<mpi::Session> session = FakeMpi::make_session(fake);
  std::vector<float> input = std::vector<float>(kLargeBytes / sizeof(float), 1.0F);
  std::vector<float> own = std::vector<float>(kLargeBytes / sizeof(float));
  std::vector<float> output = std::vector<float>(kLargeBytes / sizeof(float));
  EngineWorld world{
      2, [this](int rank) {
        return std::make_unique<MpiTransport>(MpiOptions{rank, session, kEagerBytes});
      }};
  RequestId theirs = 0;
  RequestId id = 0;
};

TEST(mpi_zero_copy, a_failed_operation_is_finished_when_mpi_has_read_its_memory) {
  FailedOperation at;
  Engine& engine = at.world.engine(0);
  CHECK(engine.finished().empty());
  CHECK(engine.held() == std::vector<RequestId>({at.id}));
  CHECK(!engine.release(at.id));
  CHECK(engine.finished().empty());
  at.fake->let_through();
  await([&] { return engine.held().empty(); });
  CHECK(engine.finished() == std::vector<RequestId>({at.id}));
  Engine& other = at.world.engine(1);
  CHECK(!other.wait(at.theirs, Clock::now() + kDeadline)->ok());
  CHECK(other.release(at.theirs));
}

TEST(mpi_zero_copy, a_closed_engine_tells_what_mpi_still_reads) {
  FailedOperation at;
  Engine& engine = at.world.engine(0);
  engine.close(0s);
  CHECK(engine.held() == std::vector<RequestId>({at.id}));
}

TEST(mpi_zero_copy, an_engine_releases_mpi_before_it_is_finalized) {
  FailedOperation at;
  Engine& engine = at.world.engine(0);
  const auto hook =
      at.session->finalize_hooks().add([&engine] { engine.release_backends(); });
  at.fake->finalize();
  at.session->finalize_hooks().remove(hook);
  CHECK(engine.held() == std::vector<RequestId>({at.id}));
  engine.close(kDeadline);
  CHECK_EQ(at.fake->late_calls(), 0);
}

}  // namespace
}  // namespace bluecomm::test
