// The blocks that are handed out, one by one and summed by the line that made them.

#pragma once

#include "blocks.hpp"

#include <memory>
#include <vector>

namespace {

struct Living {
  std::vector<uint64_t> address;
  std::vector<int64_t> size;
  std::vector<int32_t> birth, era, node, function;
};

// All of them, at one moment. Blocks of an era before `since` are left out.
Living* list_living(int32_t since) {
  auto living = std::make_unique<Living>();
  each_block([&](const Block& block) {
    if (block.era >= since) {
      living->address.push_back(block.key);
      living->size.push_back(block.size);
      living->birth.push_back(block.origin.birth.line);
      living->era.push_back(block.era);
      living->node.push_back(block.origin.node);
      living->function.push_back(block.origin.function);
    }
  });
  return living.release();
}

struct Total {
  int64_t blocks = 0, bytes = 0;
};

struct Totals {
  std::vector<int32_t> birth;
  std::vector<int64_t> blocks, bytes;
};

Totals* sum_by_birth() {
  // births are few and dense: a vector is faster than a table
  std::vector<Total> totals;
  each_block([&](const Block& block) {
    const auto place = static_cast<size_t>(block.origin.birth.line + 1);
    if (place >= totals.size()) {
      totals.resize(place + 1);
    }
    ++totals[place].blocks;
    totals[place].bytes += block.size;
  });
  auto found = std::make_unique<Totals>();
  for (size_t place = 0; place < totals.size(); ++place) {
    if (totals[place].blocks != 0) {
      found->birth.push_back(static_cast<int32_t>(place) - 1);
      found->blocks.push_back(totals[place].blocks);
      found->bytes.push_back(totals[place].bytes);
    }
  }
  return found.release();
}

}  // namespace
