// Makes the requests on standard input of TensorFlow's own BFC allocator, whose regions are
// addresses without memory, and prints what it says after each.
//
// Arguments: limit, direction in which regions are placed (1 or -1).
// Requests: "m KEY BYTES", "f KEY".
// Answers: address (0: none), bytes in use, their peak, bytes of regions, their peak.
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <unordered_map>

#include "xla/tsl/framework/bfc_allocator.h"

namespace {

constexpr std::uint64_t kFirst = 1ull << 44, kStep = 2 << 20;

class Places : public tsl::SubAllocator {
 public:
  explicit Places(int direction) : SubAllocator({}, {}), direction_(direction) {}

  void* Alloc(size_t, size_t nbytes, size_t* received) override {
    *received = nbytes;
    std::uint64_t extent = (nbytes + kStep - 1) / kStep * kStep, at = next_;
    if (direction_ > 0) {
      next_ += extent;
    } else {
      at = next_ -= extent;
    }
    return reinterpret_cast<void*>(at);
  }

  void Free(void*, size_t) override {}

  bool SupportsCoalescing() const override { return false; }

 private:
  std::uint64_t next_ = kFirst;
  int direction_;
};

}  // namespace

int main(int, char** argument) {
  std::uint64_t limit = std::stoull(argument[1]);
  auto places = std::make_unique<Places>(std::stoi(argument[2]));
  tsl::BFCAllocator::Options options;
  options.allow_growth = true;
  options.allow_retry_on_failure = false;
  auto allocator = std::make_unique<tsl::BFCAllocator>(std::move(places), limit, "truth", options);
  tsl::AllocationAttributes quiet;
  quiet.retry_on_failure = false;
  std::unordered_map<long, void*> held;
  std::string what;
  long key;
  std::uint64_t nbytes, address;
  while (std::cin >> what) {
    address = 0;
    if (what == "m") {
      std::cin >> key >> nbytes;
      void* given = allocator->AllocateRaw(64, nbytes, quiet);
      if (given != nullptr) held[key] = given;
      address = reinterpret_cast<std::uint64_t>(given);
    } else {
      std::cin >> key;
      allocator->DeallocateRaw(held.at(key));
      held.erase(key);
    }
    auto stats = allocator->GetStats();
    std::cout << address << ' ' << stats->bytes_in_use << ' ' << stats->peak_bytes_in_use << ' '
              << *stats->pool_bytes << ' ' << *stats->peak_pool_bytes << '\n';
  }
  std::cout.flush();
  // regions are addresses only: nothing to take down
  std::_Exit(0);
}
