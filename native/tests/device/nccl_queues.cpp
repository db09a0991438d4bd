#include "tests/device/nccl_queues.h"

#include <algorithm>
#include <utility>

namespace bluecomm::test {

using device::CudaDevice;
using device::CudaDriver;
using device::CudaFunctions;
using device::NcclCall;
using device::NcclFunctions;
using device::NcclGroup;
using device::NcclHandle;
using device::NcclLibrary;
using device::NcclQueue;
using device::NcclWork;

std::unique_ptr<Imitation> imitation;

void Imitation::log(NcclHandle comm, const std::string& call) {
  const std::lock_guard lock(mutex_);
  calls_[comm].push_back(call);
  if (call == "abort") finishes_ = true;  // streams go on
}

std::vector<std::string> Imitation::calls(int rank) {
  const std::lock_guard lock(mutex_);
  return calls_[comm_of(rank)];
}

bool Imitation::has_called(int rank, const std::string& call) {
  const std::vector<std::string> all = calls(rank);
  return std::ranges::find(all, call) != all.end();
}

int Imitation::query() {
  const std::lock_guard lock(mutex_);
  ++queries_;
  return finishes_ ? 0 : device::kCudaNotReady;
}

std::size_t Imitation::queries() {
  const std::lock_guard lock(mutex_);
  return queries_;
}

int Imitation::async_error(NcclHandle comm) {
  const std::lock_guard lock(mutex_);
  if (!failed_.contains(comm)) return device::kNcclSuccess;
  ++errors_;
  return device::kNcclRemoteError;
}

std::size_t Imitation::errors() {
  const std::lock_guard lock(mutex_);
  return errors_;
}

void Imitation::lose_another(int rank) {
  const std::lock_guard lock(mutex_);
  failed_.insert(comm_of(rank));
}

void Imitation::set_finishes(bool finishes) {
  const std::lock_guard lock(mutex_);
  finishes_ = finishes;
}

namespace {

CudaFunctions cuda_of_imitation() {
  CudaFunctions all{};
  all.init = [](unsigned) { return 0; };
  all.device_count = [](int* count) {
    *count = 1;
    return 0;
  };
  all.device_get = [](int*, int) { return 0; };
  all.context_retain = [](device::CudaContext*, int) { return 0; };
  all.context_release = [](int) { return 0; };
  all.context_push = [](device::CudaContext) { return 0; };
  all.context_pop = [](device::CudaContext*) { return 0; };
  all.stream_priorities = [](int*, int*) { return 0; };
  all.stream_create = [](device::CudaStream*, unsigned, int) { return 0; };
  all.stream_destroy = [](device::CudaStream) { return 0; };
  all.stream_wait = [](device::CudaStream, device::CudaEvent, unsigned) { return 0; };
  all.stream_is_capturing = [](device::CudaStream, int*) { return 0; };
  all.exchange_capture_mode = [](int*) { return 0; };
  all.event_create = [](device::CudaEvent*, unsigned) { return 0; };
  all.event_record = [](device::CudaEvent, device::CudaStream) { return 0; };
  all.event_query = [](device::CudaEvent) { return imitation->query(); };
  all.event_destroy = [](device::CudaEvent) { return 0; };
  all.event_elapsed = [](float*, device::CudaEvent, device::CudaEvent) { return 0; };
  all.error_name = [](int, const char** name) {
    *name = "CUDA_ERROR";
    return 0;
  };
  all.error_text = all.error_name;
  return all;
}

NcclFunctions nccl_of_imitation() {
  NcclFunctions all{};
  all.get_unique_id = [](device::NcclId*) { return 0; };
  all.init_rank = [](NcclHandle* comm, int, device::NcclId, int rank,
                     device::NcclConfig*) {
    *comm = Imitation::comm_of(rank);
    return device::kNcclInProgress;
  };
  all.get_async_error = [](NcclHandle comm, int* error) {
    *error = imitation->async_error(comm);
    return 0;
  };
  all.finalize = [](NcclHandle comm) {
    imitation->log(comm, "finalize");
    return 0;
  };
  all.abort = [](NcclHandle comm) {
    imitation->log(comm, "abort");
    return 0;
  };
  all.all_reduce = [](const void*, void*, std::size_t count, int, int, NcclHandle comm,
                      device::CudaStream) {
    imitation->log(comm, "allreduce " + std::to_string(count));
    return 0;
  };
  all.group_start = [] { return 0; };
  all.group_end = [] { return 0; };
  all.send = [](const void*, std::size_t nbytes, int, int peer, NcclHandle comm,
                device::CudaStream) {
    imitation->log(comm,
                   "send " + std::to_string(nbytes) + " to " + std::to_string(peer));
    return 0;
  };
  all.receive = [](void*, std::size_t nbytes, int, int peer, NcclHandle comm,
                   device::CudaStream) {
    imitation->log(
        comm, "receive " + std::to_string(nbytes) + " from " + std::to_string(peer));
    return 0;
  };
  all.error_text = [](int) { return "error"; };
  all.last_error = [](NcclHandle) { return ""; };
  return all;
}

}  // namespace

Queues::Queues(int size, bool awaits_device) {
  imitation = std::make_unique<Imitation>();
  const auto library = std::make_shared<NcclLibrary>(nccl_of_imitation(), 22907);
  const auto device = std::make_shared<CudaDevice>(
      std::make_shared<const CudaDriver>(cuda_of_imitation()), 0);
  for (int rank = 0; rank < size; ++rank) {
    queues_.push_back(NcclQueue::open(library, device, rank, awaits_device));
  }
}

NcclGroup Queues::group_of(int rank, const std::vector<int>& ranks) {
  NcclGroup group;
  for (const int member : ranks) group.id = 10 * group.id + member + 1;
  group.rank = static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
  group.ranks = ranks;
  return group;
}

std::shared_ptr<NcclCall> Queues::enter(int rank, const std::vector<int>& ranks,
                                        const NcclWork& work, NcclCall::Limit limit) {
  const NcclGroup group = group_of(rank, ranks);
  return of(rank).enter(*of(rank).make_call(group, work, nullptr, limit), group);
}

std::shared_ptr<NcclCall> Queues::make(int rank, std::size_t count,
                                       NcclCall::Limit limit) {
  NcclWork work;
  work.count = count;
  return enter(rank, {0, 1}, work, limit);
}

CallOfRanks Queues::make_among(const std::vector<int>& ranks, std::size_t count) {
  NcclWork work;
  work.count = count;
  CallOfRanks calls;
  for (const int rank : ranks) calls.push_back(enter(rank, ranks, work));
  return calls;
}

std::shared_ptr<NcclCall> Queues::make_exchange(
    int rank, std::vector<device::NcclMessage> sends,
    std::vector<device::NcclMessage> receives, bool compares_sizes) {
  NcclWork work;
  work.function = NcclWork::Function::kExchange;
  work.sends = std::move(sends);
  work.receives = std::move(receives);
  work.compares_sizes = compares_sizes;
  return enter(rank, {0, 1}, work);
}

std::vector<std::uint64_t> Queues::propose(const CallOfRanks& calls) {
  std::vector<std::byte> offers;
  for (const auto& call : calls) {
    offers.insert(offers.end(), call->offer().begin(), call->offer().end());
  }
  calls.front()->check_offers(offers);
  std::vector<std::uint64_t> proposals;
  for (std::size_t member = 1; member < calls.size(); ++member) {
    proposals.push_back(calls[member]->propose());
  }
  return proposals;
}

AnswerBytes Queues::decide(const CallOfRanks& calls,
                           const std::vector<std::uint64_t>& proposals) {
  AnswerBytes answer{};
  calls.front()->write_answer(proposals, answer);
  return answer;
}

void Queues::take(const CallOfRanks& calls, const AnswerBytes& answer) {
  for (const auto& call : calls) call->take_answer(answer);
}

void Queues::issue(std::size_t count) {
  const CallOfRanks calls = make_all(count);
  take(calls, number(calls));
  for (const auto& call : calls) CHECK(awaited_outcome(*call).ok());
}

Status awaited_outcome(NcclCall& call) {
  await([&] { return call.poll().has_value(); });
  return call.poll().value_or(Status{});
}

}  // namespace bluecomm::test
