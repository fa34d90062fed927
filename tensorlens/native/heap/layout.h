// Layout and types of the running CPython's objects.
//
// Offsets beyond the stable ABI (lists, tuples, dicts of instances, functions, frames) are set by
// tl_heap_setup and checked from Python on objects of known content before anything is read.

#pragma once

#include "offsets.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <unordered_map>

#include <sys/types.h>

// Names of CPython's stable ABI, found in the running interpreter. Python.h is not needed: on many
// machines it is a separate package.
using PyObject = struct _object;
using PyTypeObject = struct _typeobject;
using Visit = int (*)(PyObject*, void*);
using Traverse = int (*)(PyObject*, Visit, void*);
constexpr int kSlotTraverse = 71;  // Py_tp_traverse
extern "C" int PyType_IsSubtype(PyTypeObject*, PyTypeObject*);
extern "C" void* PyType_GetSlot(PyTypeObject*, int);
extern "C" unsigned long PyType_GetFlags(PyTypeObject*);
extern "C" int PyDict_Next(PyObject*, ssize_t*, PyObject**, PyObject**);
extern "C" int PyList_Append(PyObject*, PyObject*);
extern "C" int PyList_SetSlice(PyObject*, ssize_t, ssize_t, PyObject*);
extern "C" PyObject* PyObject_CallNoArgs(PyObject*);
extern "C" void Py_DecRef(PyObject*);
extern "C" void PyErr_Clear();
extern "C" ssize_t PyTuple_Size(PyObject*);
extern "C" PyObject* PyTuple_GetItem(PyObject*, ssize_t);
extern "C" long long PyLong_AsLongLongAndOverflow(PyObject*, int*);
extern "C" PyObject* PyLong_FromLongLong(long long);
extern "C" PyTypeObject PyLong_Type;
extern "C" PyTypeObject PyUnicode_Type;
extern "C" PyTypeObject PyList_Type;
extern "C" PyTypeObject PyTuple_Type;
extern "C" PyTypeObject PyDict_Type;
extern "C" PyTypeObject PyModule_Type;
extern "C" PyTypeObject PyFunction_Type;
extern "C" PyTypeObject PyCell_Type;
extern "C" PyTypeObject PyGen_Type;
extern "C" PyTypeObject PyCoro_Type;
extern "C" PyTypeObject PyAsyncGen_Type;
extern "C" PyTypeObject PyFrame_Type;
extern "C" PyTypeObject PyCode_Type;
extern "C" PyTypeObject PyMethodDescr_Type;
extern "C" PyTypeObject PyClassMethodDescr_Type;
extern "C" PyTypeObject PyWrapperDescr_Type;
extern "C" PyTypeObject PyMemberDescr_Type;
extern "C" PyTypeObject PyGetSetDescr_Type;

namespace {

constexpr unsigned long kInlineValues = 1ul << 2;
constexpr unsigned long kManagedDict = 1ul << 4;
constexpr unsigned long kLongSubclass = 1ul << 24;
constexpr unsigned long kListSubclass = 1ul << 25;
constexpr unsigned long kTupleSubclass = 1ul << 26;
constexpr unsigned long kDictSubclass = 1ul << 29;
constexpr unsigned long kTypeSubclass = 1ul << 31;

// How, Origin and Written have the same values in heap/native.py.
enum Kind : uint8_t {
  kAtomic, kFunction, kModule, kCell, kGenerator, kFrame, kList, kTuple, kDict, kType, kOther,
};
enum How : int8_t {
  kRoot, kItem, kValue, kAttribute, kAlias, kOpaque, kKey, kClosureVariable, kLocal,
  kContents, kDefaults, kKeywordDefaults,
  kVars, kClosure,  // kAlias in a name
};
enum Origin : int8_t {
  kMain, kVariable, kClass, kOtherModule, kFunctionOrigin, kGeneratorOrigin, kFrameOrigin,
  kTemporary, kTop, kCycle,
  kEnd,  // an anchor of a search for all references; not in native.py
};
enum Written : int8_t { kQuoted, kBare, kDescribed };
constexpr ssize_t kMaxKeyLength = 60;  // the same as in names.py

struct Layout {
  int64_t minor;
  int64_t tuple_items;
  int64_t cached_keys;  // 0 if the names of inline values cannot be read
  int64_t dicts_show_values;  // whether the collector finds inline values only by the instance
  PyObject* transparent[3];  // '_modules' and similar names
} g_layout;

struct SpecialType {
  const PyTypeObject* type;
  Kind kind;
};

// Types with a kind of their own, not that of a base type.
const SpecialType kSpecialTypes[] = {
    {&PyFunction_Type, kFunction}, {&PyCell_Type, kCell}, {&PyFrame_Type, kFrame},
    {&PyGen_Type, kGenerator}, {&PyCoro_Type, kGenerator}, {&PyAsyncGen_Type, kGenerator},
    {&PyCode_Type, kAtomic}, {&PyMethodDescr_Type, kAtomic}, {&PyClassMethodDescr_Type, kAtomic},
    {&PyWrapperDescr_Type, kAtomic}, {&PyMemberDescr_Type, kAtomic}, {&PyGetSetDescr_Type, kAtomic},
};

template <class T>
T at(const void* base, ssize_t offset) {
  T value;
  std::memcpy(&value, static_cast<const char*>(base) + offset, sizeof value);
  return value;
}

PyTypeObject* type_of(const void* object) { return at<PyTypeObject*>(object, offsets::kType); }
ssize_t size_of(const void* object) { return at<ssize_t>(object, offsets::kSize); }
PyObject* const* list_items(const void* list) {
  return at<PyObject* const*>(list, offsets::kListItems);
}
PyObject* const* tuple_items(const void* tuple) {
  return reinterpret_cast<PyObject* const*>(static_cast<const char*>(tuple) + g_layout.tuple_items);
}

uint64_t hash_address(uintptr_t address) { return (address >> 4) * 0x9E3779B97F4A7C15ull; }

// Keeps objects of one page together in a table: they are mostly looked up in that order.
uint64_t slot_hash(uintptr_t address) {
  return (hash_address(address >> 8) >> 24) ^ (address >> 4);
}

struct Type {
  PyTypeObject* type = nullptr;
  Traverse traverse = nullptr;
  unsigned long flags = 0;
  ssize_t basicsize = 0, itemsize = 0, dictoffset = 0;
  Kind kind = kAtomic;
  bool exact = false;  // whether all of its references are read without a traversal
};

Type describe(PyTypeObject* type) {
  Type found;
  found.type = type;
  found.flags = PyType_GetFlags(type);
  found.traverse = reinterpret_cast<Traverse>(PyType_GetSlot(type, kSlotTraverse));
  found.basicsize = at<ssize_t>(type, offsets::kBasicSize);
  found.itemsize = at<ssize_t>(type, offsets::kItemSize);
  found.dictoffset = at<ssize_t>(type, offsets::kDictOffset);
  found.exact = type == &PyList_Type || type == &PyTuple_Type || type == &PyDict_Type ||
                type == &PyCell_Type;
  const auto* const special = std::find_if(
      std::begin(kSpecialTypes), std::end(kSpecialTypes),
      [type](const SpecialType& each) { return each.type == type; });
  if (special != std::end(kSpecialTypes)) {
    found.kind = special->kind;
  } else if (found.flags & kTypeSubclass) {
    found.kind = kType;
  } else if (found.flags & kListSubclass) {
    found.kind = kList;
  } else if (found.flags & kTupleSubclass) {
    found.kind = kTuple;
  } else if (found.flags & kDictSubclass) {
    found.kind = kDict;
  } else if (PyType_IsSubtype(type, &PyModule_Type)) {
    found.kind = kModule;
  } else {
    found.kind = found.traverse == nullptr ? kAtomic : kOther;
  }
  return found;
}

// Descriptions of types by address.
class Types {
 public:
  const Type& of(const void* object) {
    PyTypeObject* type = type_of(object);
    const Type*& cached = cache_[hash_address(reinterpret_cast<uintptr_t>(type)) >> 52];
    if (cached == nullptr || cached->type != type) {
      cached = &known(type);
    }
    return *cached;
  }

 private:
  const Type& known(PyTypeObject* type) {
    const auto found = all_.find(type);
    return found != all_.end() ? found->second : all_.emplace(type, describe(type)).first->second;
  }

  const Type* cache_[4096] = {};
  std::unordered_map<PyTypeObject*, Type> all_;
};

// An instance's __dict__; null if there is none yet.
PyObject* dict_of(PyObject* object, const Type& type) {
  if (type.flags & kManagedDict) {
    const auto word = at<uintptr_t>(object, offsets::kManagedDict);
    return g_layout.minor == 12 && (word & 1) ? nullptr : reinterpret_cast<PyObject*>(word);
  }
  ssize_t offset = type.dictoffset;
  if (offset < 0) {
    // the size field of an int is not its number of items
    if (type.flags & kLongSubclass) {
      return nullptr;
    }
    const ssize_t whole = type.basicsize + std::abs(size_of(object)) * type.itemsize;
    offset += (whole + 7) & ~ssize_t{7};
  }
  return offset > 0 ? at<PyObject*>(object, offset) : nullptr;
}

// Whether a __dict__ only shows the values that lie in its instance (3.13).
bool shows_inline_values(PyObject* dict) {
  const char* values =
      g_layout.dicts_show_values ? at<const char*>(dict, offsets::kDictValues) : nullptr;
  return values != nullptr && values[2] != 0;
}

// Attributes of an instance without a __dict__: their values lie beside the instance, in the order
// of the names that its class keeps.
struct InlineAttributes {
  const char* values = nullptr;
  const char* keys = nullptr;
  ssize_t count = 0;

  PyObject* value(ssize_t index) const { return at<PyObject*>(values, 8 * index); }
  PyObject* name(ssize_t index) const {
    const ssize_t index_bytes = ssize_t{1} << at<uint8_t>(keys, offsets::kKeysIndexSize);
    return at<PyObject*>(keys, offsets::kKeysIndex + index_bytes + offsets::kEntry * index);
  }
};

// Without attributes if there are none or if they cannot be read.
InlineAttributes inline_attributes(PyObject* object, const Type& type) {
  InlineAttributes found;
  if (!(type.flags & kManagedDict) || g_layout.cached_keys == 0) {
    return found;
  }
  found.keys = at<const char*>(type.type, g_layout.cached_keys);
  if (found.keys == nullptr || at<ssize_t>(found.keys, offsets::kKeysCount) == 0) {
    return found;
  }
  if (g_layout.minor == 11) {
    found.values = at<const char*>(object, offsets::kValuesBefore);
  } else if (g_layout.minor == 12) {
    const auto word = at<uintptr_t>(object, offsets::kManagedDict);
    found.values = word & 1 ? reinterpret_cast<const char*>(word + 1) : nullptr;
  } else if (type.flags & kInlineValues) {
    const char* header = reinterpret_cast<const char*>(object) + type.basicsize;
    found.values = header[3] ? header + 8 : nullptr;
  }
  found.count = found.values == nullptr ? 0 : at<ssize_t>(found.keys, offsets::kKeysCount);
  return found;
}

// The name of the inline attribute that refers to `child`, or null.
PyObject* inline_name(PyObject* object, const Type& type, const PyObject* child) {
  const InlineAttributes inside = inline_attributes(object, type);
  for (ssize_t index = 0; index < inside.count; ++index) {
    if (inside.value(index) == child) {
      return inside.name(index);
    }
  }
  return nullptr;
}

// A hint to the processor only: harmless if an object has another layout.
void prefetch_content(PyObject* object, const Type& type) {
  const char* start = reinterpret_cast<const char*>(object);
  if (type.kind == kList) {
    __builtin_prefetch(list_items(object));
  } else if (type.kind == kDict) {
    const char* keys = at<const char*>(object, offsets::kDictKeys);
    __builtin_prefetch(keys);
    __builtin_prefetch(keys + 64);
  } else if (type.kind == kOther && type.basicsize >= 24) {
    __builtin_prefetch(at<const char*>(object, 16));
  } else if (type.kind == kFunction) {
    __builtin_prefetch(start + offsets::kKeywordDefaults);
  }
}

}  // namespace
