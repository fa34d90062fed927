// Offsets of fields of CPython 3.11 to 3.14 beyond its stable ABI, in bytes from an object's
// address. Python checks those of kChecked on objects of known content before anything is read.

#pragma once

#include <cstdint>
#include <cstring>
#include <sys/types.h>

namespace offsets {

constexpr ssize_t kType = 8;          // of every object
constexpr ssize_t kSize = 16;         // Include/object.h: PyVarObject.ob_size
constexpr ssize_t kListItems = 24;    // cpython/listobject.h
constexpr ssize_t kCellContent = 16;  // cpython/cellobject.h
constexpr ssize_t kTextLength = 16;   // cpython/unicodeobject.h

constexpr ssize_t kBasicSize = 32, kItemSize = 40, kDictOffset = 288;  // cpython/object.h: a type

// cpython/funcobject.h
constexpr ssize_t kDefaults = 56, kKeywordDefaults = 64, kClosure = 72, kAttributes = 88;

constexpr ssize_t kManagedDict = -24;    // before an instance: its __dict__, tagged in 3.12
constexpr ssize_t kValuesBefore = -32;   // before an instance, 3.11: its attributes' values
constexpr ssize_t kDictKeys = 32;        // cpython/dictobject.h
constexpr ssize_t kDictValues = 40;      // internal/pycore_dict.h, 3.13
constexpr ssize_t kKeysIndexSize = 9;    // log2 of the bytes of a dict's index
constexpr ssize_t kKeysCount = 24;
constexpr ssize_t kKeysIndex = 32;       // the entries follow it
constexpr ssize_t kEntry = 16;           // size of an entry

constexpr ssize_t kFrameData = 24;  // internal/pycore_frame.h: PyFrameObject.f_frame
constexpr ssize_t kFrameSlots13 = 72, kFrameSlots = 80;    // up to 3.13, and from 3.14 on
constexpr ssize_t kFrameCode11 = 32, kFrameObject11 = 40;  // 3.11
constexpr ssize_t kFrameCode = 0, kFrameObject = 48;       // from 3.12 on
constexpr uintptr_t kFrameTags = 3, kBorrowed = 1;         // internal/pycore_stackref.h, 3.14

struct NamedOffset {
  const char* name;
  ssize_t bytes;
};

// Offsets that Python checks.
constexpr NamedOffset kChecked[] = {
    {"type", kType}, {"size", kSize}, {"list items", kListItems}, {"cell content", kCellContent},
    {"text length", kTextLength}, {"basic size", kBasicSize}, {"item size", kItemSize},
    {"dict offset", kDictOffset}, {"defaults", kDefaults},
    {"keyword defaults", kKeywordDefaults}, {"closure", kClosure}, {"attributes", kAttributes},
};

inline ssize_t by_name(const char* name) {
  for (const NamedOffset& each : kChecked) {
    if (std::strcmp(each.name, name) == 0) {
      return each.bytes;
    }
  }
  return -1;
}

}  // namespace offsets
