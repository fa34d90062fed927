// The source lines that made a block, as numbers.

#pragma once

#include <cstdint>

namespace {

constexpr int32_t kNoBirth = -1;

// Numbers of lines (see Lines in alloc_sites.hpp): the user's, and the model's where that is a library's.
struct Birth {
  int32_t line = kNoBirth;
  int32_t model = kNoBirth;
};

}  // namespace
