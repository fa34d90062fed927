// Reads the entries of dicts: in place where the layout is known, which takes a quarter of the time.

#pragma once

#include "layout.h"

namespace {

// A dict's own table of entries. That of a dict that shares its keys is not read.
class Entries {
 public:
  explicit Entries(const PyObject* dict) {
    const char* keys = at<const char*>(dict, 32);
    known_ = g_layout.reads_dicts && keys != nullptr && at<const char*>(dict, 40) == nullptr;
    if (known_) {
      texts_ = at<uint8_t>(keys, 10) == kTexts;
      start_ = keys + 32 + (ssize_t{1} << at<uint8_t>(keys, 9));
      count_ = at<ssize_t>(keys, 24);
    }
  }

  bool known() const { return known_; }

  template <class Take>
  void each(Take&& take) const {
    // where keys are of all types, each one's hash comes first
    const ssize_t size = texts_ ? 16 : 24;
    const char* const end = start_ + size * count_;
    for (const char* entry = start_; entry < end; entry += size) {
      auto* const value = at<PyObject*>(entry, size - 8);
      if (value != nullptr) {
        take(at<PyObject*>(entry, size - 16), value, texts_);
      }
    }
  }

 private:
  static constexpr uint8_t kTexts = 1;

  const char* start_ = nullptr;
  ssize_t count_ = 0;
  bool known_ = false, texts_ = false;
};

// Calls `take(key, value, whether the key is known to be a text)` for each entry, in order.
template <class Take>
void each_item(PyObject* dict, Take&& take) {
  const Entries entries(dict);
  if (entries.known()) {
    entries.each(take);
    return;
  }
  ssize_t position = 0;
  PyObject *key = nullptr, *value = nullptr;
  while (PyDict_Next(dict, &position, &key, &value)) {
    take(key, value, false);
  }
}

}  // namespace
