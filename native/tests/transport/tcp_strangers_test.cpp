// Strangers that do not belong to the job disturb nobody and learn nothing.
#include <algorithm>
#include <string>
#include <vector>

#include "tests/check.h"
#include "tests/transport/tcp_support.h"

namespace bluecomm::test {
namespace {

// Ranks that exchange messages while strangers connect.
struct Job {
  explicit Job(const Adjust& adjust = {}) : ranks(tcp_scheme(adjust), 3, findings) {}
  ~Job() {
    for (const std::string& finding : findings) {
      record_failure("strangers", 0, finding);
    }
  }

  std::string offer() { return ranks[0].transport().offer(); }
  std::uint64_t rejected() {
    return dynamic_cast<TcpTransport&>(ranks[0].transport()).rejected();
  }

  void work() {
    const std::uint64_t tag = next_tag++;
    const Sending sending = ranks[0].send(1, tag, 600'000);
    if (Reader* reader = ranks.await(1, tag)) ranks.read_all(*reader);
  }

  // Checks that the stranger's connection is closed after it has received `said`
  // bytes.
  void expect_silence(int fd, std::size_t said = 0) {
    std::string heard;
    ranks.drive("end of a stranger's connection", [&] {
      const bool ended = has_ended(fd, heard);
      if (!ended) ranks.drive_for(5ms);
      return ended;
    });
    CHECK_EQ(heard.size(), said);
  }

  Findings findings;
  Ranks ranks;
  std::uint64_t next_tag = 1;
};

void quick(TcpOptions& options) { options.handshake_timeout = 1000ms; }

TEST(tcp_strangers, garbage_is_disconnected_at_once) {
  Job job;
  job.work();
  for (const std::string& text :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("\x16\x03\x01"),
        std::string(100'000, 'x'), std::string(5, '\0')}) {
    const UniqueFd fd = connect_to(job.offer());
    write_all(fd.get(), text);
    job.expect_silence(fd.get());
  }
  CHECK_EQ(job.rejected(), 4u);
  job.work();
}

TEST(tcp_strangers, port_scanners_do_no_harm) {
  Job job;
  job.work();
  for (int i = 0; i < 200; ++i) {
    connect_to(job.offer());
    if (i % 50 == 0) job.work();
  }
  job.work();
}

TEST(tcp_strangers, half_handshakes_end_by_the_deadline) {
  Job job(&quick);
  job.work();
  const std::string hello(stream::kMagic.begin(), stream::kMagic.end());
  const UniqueFd silent = connect_to(job.offer());
  const UniqueFd started = connect_to(job.offer());
  write_all(started.get(), hello);
  // A peer that knows the key, but stops after its first message.
  HandMadePeer half(job.offer(), 1);
  half.greet();
  job.expect_silence(silent.get());
  job.expect_silence(started.get());
  job.work();
}

TEST(tcp_strangers, a_wrong_hello_gets_no_reply) {
  const std::vector<std::function<void(stream::Hello&, TcpOptions&)>> spoilers{
      [](stream::Hello&, TcpOptions& options) { options.key.assign(32, std::byte{8}); },
      [](stream::Hello&, TcpOptions& options) { options.key.clear(); },
      [](stream::Hello& hello, TcpOptions&) { hello.epoch = 2; },
      [](stream::Hello& hello, TcpOptions&) { hello.job[0] ^= std::byte{1}; },
      [](stream::Hello& hello, TcpOptions&) { hello.to = 2; },
      [](stream::Hello& hello, TcpOptions&) { hello.from = 0; },
      [](stream::Hello& hello, TcpOptions&) { hello.from = -1; },
      [](stream::Hello& hello, TcpOptions&) { hello.stream = 16; },
      [](stream::Hello& hello, TcpOptions&) {
        hello.encryption = stream::Encryption::kFull;
      }};
  Job job;
  job.work();
  for (const auto& spoil : spoilers) {
    HandMadePeer peer(job.offer(), 1, spoil);
    peer.greet();
    job.expect_silence(peer.fd());
  }
  CHECK_EQ(job.rejected(), spoilers.size());
  job.work();
}

TEST(tcp_strangers, unknown_and_connected_ranks_are_disconnected) {
  Job job;
  job.work();
  for (const int from : {1, 77}) {
    HandMadePeer peer(job.offer(), 1,
                      [&](stream::Hello& hello, TcpOptions&) { hello.from = from; });
    job.ranks.spin("a handshake", [&] { return peer.greet(); });
    job.expect_silence(peer.fd());
  }
  job.work();
}

TEST(tcp_strangers, further_streams_join_the_link_of_their_pair_only) {
  const std::vector<HandMadePeer::Spoil> spoilers{
      // The hello of another link, of another rank, with another key, and of another
      // epoch.
      [](stream::Hello& hello, TcpOptions&) { hello.group[0] ^= std::byte{1}; },
      [](stream::Hello& hello, TcpOptions&) { hello.from = 2; },
      [](stream::Hello&, TcpOptions& options) { options.key.assign(32, std::byte{8}); },
      [](stream::Hello& hello, TcpOptions&) { hello.epoch = 2; }};
  for (const auto& spoil : spoilers) {
    LoneRank world(tcp_alone(&quick));
    HandMadePeer peer(world.offer(), 2, [&](stream::Hello& hello, TcpOptions& options) {
      if (hello.stream == 1) spoil(hello, options);
    });
    world.ranks.spin("a second connection", [&] {
      peer.greet();
      return peer.dialled() == 2;
    });
    std::string heard;
    world.ranks.spin("its end", [&] {
      if (!has_ended(peer.fd(1), heard)) peer.greet();
      return has_ended(peer.fd(1), heard);
    });
    // The link still works.
    peer.announce(0, 5, 10);
    CHECK(world.ranks.await(0, 5) != nullptr);
    CHECK(world.ranks[0].lost.empty());
  }
}

TEST(tcp_strangers, a_half_handshake_of_a_further_stream_ends_by_the_deadline) {
  LoneRank world(tcp_alone(&quick));
  HandMadePeer peer(world.offer(), 2);
  world.ranks.spin("a second connection", [&] {
    if (peer.dialled() == 1) peer.greet();
    return peer.dialled() == 2;
  });
  std::string heard;
  world.ranks.spin("its end", [&] { return has_ended(peer.fd(1), heard); });
  CHECK_EQ(heard.size(), 0u);
  CHECK(world.ranks[0].lost.empty());
}

TEST(tcp_strangers, a_link_has_at_most_sixteen_streams) {
  LoneRank world(tcp_alone());
  HandMadePeer peer(world.offer(), 17, [](stream::Hello& hello, TcpOptions&) {
    hello.stream = std::min(hello.stream, 15u);
  });
  std::string heard;
  world.ranks.spin("the end of the last", [&] {
    peer.greet();
    return peer.dialled() == 17 && has_ended(peer.fd(16), heard);
  });
  CHECK_EQ(world.ranks[0].channel(1).stats().streams.size(), 16u);
  CHECK(world.ranks[0].lost.empty());
}

TEST(tcp_strangers, half_open_connections_keep_nobody_out) {
  Job job([](TcpOptions& options) { options.max_half_open = 50; });
  job.work();
  std::vector<UniqueFd> crowd;
  for (int i = 0; i < 120; ++i) crowd.push_back(connect_to(job.offer()));
  job.work();
  // Rank 2 has not connected to rank 0 yet; it waits behind all the others.
  const Sending sending = job.ranks[2].send(0, 1000, 10);
  if (Reader* reader = job.ranks.await(0, 1000)) job.ranks.read_all(*reader);
  CHECK(job.rejected() >= 1);
}

TEST(tcp_strangers, ranks_with_different_keys_cannot_connect) {
  Findings findings;
  const Scheme scheme = tcp_scheme([](TcpOptions& options) {
    if (options.rank == 1) options.key.assign(32, std::byte{8});
    options.connect_timeout = 1000ms;
  });
  Ranks ranks(scheme, 2, findings);
  const Sending sending = ranks[0].send(1, 1, 10);
  ranks.drive("loss", [&] { return ranks[0].lost.contains(1); });
  const Status& status = ranks[0].lost[1];
  CHECK_EQ(status.code, Code::kPeerLost);
  CHECK_EQ(status.rank, 1);
  expect_part(status.text, "cannot connect to rank 1 within ");
  expect_part(status.text,
              " s: " + ranks[1].transport().offer() +
                  " (closed the connection during the handshake (another job?))");
  CHECK(ranks[1].lost.empty());
  CHECK_EQ(findings.size(), 0u);
}

}  // namespace
}  // namespace bluecomm::test
