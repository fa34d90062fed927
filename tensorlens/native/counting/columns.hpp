// A list in columns, copied and released by Python.

#pragma once

#include "exported.hpp"

#include <cstdint>
#include <memory>
#include <new>
#include <tuple>
#include <vector>

namespace {

class Columns {
 public:
  virtual ~Columns() = default;
  // Sets the address of each column, and returns their length.
  virtual int64_t look(const void** starts) const = 0;
};

template <typename... Values>
class ColumnsOf : public Columns {
 public:
  void add(Values... values) {
    std::apply([&](auto&... columns) { (columns.push_back(values), ...); }, columns_);
  }

  int64_t look(const void** starts) const override {
    std::apply([&](const auto&... columns) { ((*starts++ = columns.data()), ...); }, columns_);
    return static_cast<int64_t>(std::get<0>(columns_).size());
  }

 private:
  std::tuple<std::vector<Values>...> columns_;
};

// Returns a new list filled by `fill`; null if there is no memory.
template <typename List, typename Fill>
Columns* listed(Fill fill) {
  try {
    auto list = std::make_unique<List>();
    fill(*list);
    return list.release();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace

TL_EXPORT int64_t tl_list_look(const Columns* list, const void** starts) {
  return list->look(starts);
}

TL_EXPORT void tl_list_release(Columns* list) {
  delete list;
}
