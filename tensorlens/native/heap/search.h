// Searches the heap backwards: from some objects to their holders, the holders' holders, and so on
// until every object has a path to where a name begins.

#pragma once

#include "nodes.h"

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <vector>

namespace {

constexpr int16_t kDepth = 8;  // references of a path at most

class Search {
 public:
  // A key's text has the number of the key among `keys` of the rows, counted from `first_text` on.
  // In the end the tuples are looked at that are among the heap's objects, which `fetch` gives afresh.
  Search(PyObject* objects, size_t targets, int64_t first_text, PyObject* fetch)
      : objects_(list_items(objects)), count_(size_of(objects)), first_text_(first_text),
        fetch_(fetch), cap_(4 * targets + 10000), nodes_(targets + 4096) {
    edges_.reserve(targets + 1024);
    skip_.insert(reinterpret_cast<uintptr_t>(objects));
  }

  void anchor(uintptr_t address, Origin origin) {
    const int32_t number = nodes_.add(pointer(address));
    if (origin == kTemporary) {
      temporaries_.push_back(number);
    } else {
      if (origin == kMain) {
        mains_.push_back(static_cast<PyObject*>(pointer(address)));
      }
      begin(number, origin);
    }
  }

  void target(uintptr_t address) { targets_.push_back(nodes_.add(pointer(address))); }

  void run() {
    settle();
    for (pass_ = 0; pass_ < kDepth && choose_wanted(); ++pass_) {
      // nothing is better than a path from there: mostly the last look at all objects can be spared
      look_at_main();
      if (all_resolved()) {
        return;
      }
      look(objects_, count_);
      settle();
    }
    if (!all_resolved()) {
      go_on_through_tuples();
    }
    begin_elsewhere();
  }

  ~Search() {
    if (fresh_ != nullptr) {
      Py_DecRef(fresh_);
    }
  }

  void write(Rows& rows);

 private:
  void begin(int32_t number, Origin origin) {
    Node& node = nodes_[number];
    if (!node.resolved) {
      node.resolved = true;
      node.distance = 0;
      node.origin = origin;
      settled_.push_back(number);
    }
  }

  bool choose_wanted();
  void sift_wanted();
  bool all_resolved() const {
    return std::all_of(targets_.begin(), targets_.end(), [&](int32_t number) {
      return nodes_[number].resolved;
    });
  }

  void look(PyObject* const* objects, ssize_t count);
  void look_at_main();
  void go_on_through_tuples();
  void forget_passes();
  void visit(PyObject* object, const Type& type);
  void visit_items(PyObject* const* items, ssize_t count);
  void settle();
  void begin_elsewhere();
  bool better(const Edge& edge, int32_t than) const;
  int64_t number_of_key(PyObject* key, bool attribute, Rows& rows);
  void write_row(int32_t number, Rows& rows);

  bool maybe(const PyObject* object) const {
    const auto address = reinterpret_cast<uintptr_t>(object);
    const uint64_t bit = scattered(address) & bloom_mask_;
    return bloom_[bit >> 6] >> (bit & 63) & 1;
  }

  void probe(PyObject* child, How how, int64_t value) {
    if (maybe(child)) {
      found(child, how, value);
    }
  }

  void found(PyObject* child, How how, int64_t value);
  int32_t holder();

  static int visit_any(PyObject* child, void* self) {
    static_cast<Search*>(self)->probe(child, kOpaque, 0);
    return 0;
  }

  PyObject* const* objects_;
  ssize_t count_;
  int64_t first_text_;
  PyObject* fetch_;
  PyObject* fresh_ = nullptr;
  size_t cap_;
  int16_t pass_ = 0;
  Types types_;
  Nodes nodes_;
  std::vector<Edge> edges_;
  std::vector<int32_t> targets_, wanted_, settled_, temporaries_;
  std::vector<PyObject*> mains_;  // what names begin at whose entries are globals of __main__
  std::unordered_set<uintptr_t> skip_;
  struct KeyNumber {
    uint64_t key = 0;
    int64_t number = 0;
  };
  KeyNumber key_numbers_[1024];  // of keys met lately: many dicts have the same ones
  std::vector<int8_t> spaces_;  // for each row: its entries are attributes
  std::vector<uint64_t> bloom_;
  uint64_t bloom_mask_ = 0;
  bool wants_containers_ = false;
  size_t new_holders_ = 0;
  PyObject* current_ = nullptr;
  const Type* current_type_ = nullptr;
  int32_t current_number_ = -1;  // -1: not asked yet, -2: not to be used
};

// Wanted are the holders, not looked at yet, by which a target without a name can be reached.
bool Search::choose_wanted() {
  wanted_.clear();
  std::vector<int32_t> open, marked;
  for (const int32_t target : targets_) {
    if (!nodes_[target].resolved && !nodes_[target].marked) {
      nodes_[target].marked = true;
      open.push_back(target);
    }
  }
  while (!open.empty()) {
    const int32_t number = open.back();
    open.pop_back();
    marked.push_back(number);
    if (nodes_[number].wanted < 0) {
      wanted_.push_back(number);
      nodes_[number].wanted = pass_;
    }
    for (int32_t edge = nodes_[number].into; edge >= 0; edge = edges_[edge].next_into) {
      Node& holder = nodes_[edges_[edge].holder];
      if (!holder.marked && !holder.resolved) {
        holder.marked = true;
        open.push_back(edges_[edge].holder);
      }
    }
  }
  for (const int32_t number : marked) {
    nodes_[number].marked = false;
  }
  sift_wanted();
  return !wanted_.empty();
}

void Search::sift_wanted() {
  int bits = 14;
  while ((size_t{1} << bits) < 8 * wanted_.size()) {
    ++bits;
  }
  bloom_mask_ = (uint64_t{1} << bits) - 1;
  bloom_.assign(size_t{1} << (bits - 6), 0);
  wants_containers_ = false;
  constexpr size_t kAhead = 16;
  for (size_t index = 0; index < wanted_.size(); ++index) {
    if (index + kAhead < wanted_.size()) {
      const uintptr_t ahead = nodes_[wanted_[index + kAhead]].address;
      __builtin_prefetch(reinterpret_cast<const char*>(ahead) + 8);
    }
    const int32_t number = wanted_[index];
    const uint64_t bit = scattered(nodes_[number].address) & bloom_mask_;
    bloom_[bit >> 6] |= uint64_t{1} << (bit & 63);
    const Kind kind = types_.of(pointer(nodes_[number].address)).kind;
    wants_containers_ |= kind == kTuple || kind == kDict;
  }
}

// Most of the time goes into waiting for memory, so an object is asked for in two steps ahead of
// its turn: first its header, then, its type being known, what lies behind it.
void Search::look(PyObject* const* objects, ssize_t count) {
  new_holders_ = 0;
  constexpr ssize_t kFar = 24, kNear = 8;
  const Type* ahead[kNear];
  for (ssize_t index = -kNear; index < count; ++index) {
    if (index + kFar < count) {
      __builtin_prefetch(reinterpret_cast<const char*>(objects[index + kFar]) + 8);
    }
    const Type*& turn = ahead[(index + kNear) % kNear];
    const Type* const type = turn;
    if (index + kNear < count) {
      turn = &types_.of(objects[index + kNear]);
      prefetch_behind(objects[index + kNear], *turn);
    }
    if (index >= 0) {
      visit(objects[index], *type);
    }
  }
}

void Search::look_at_main() {
  look(mains_.data(), static_cast<ssize_t>(mains_.size()));
  settle();
}

void Search::forget_passes() {
  for (Node& node : nodes_) {
    node.wanted = node.resolved ? node.wanted : -1;
  }
}

// Nobody may hold a tuple that is still being made while other threads run: the one that makes it
// would fail. So no tuple is among the objects that the caller holds, and all are fetched here, for
// the time of one call, in which no other thread runs.
void Search::go_on_through_tuples() {
  fresh_ = PyObject_CallNoArgs(fetch_);
  if (fresh_ == nullptr) {
    PyErr_Clear();
    return;
  }
  skip_.insert(reinterpret_cast<uintptr_t>(fresh_));
  std::vector<PyObject*> tuples;
  std::copy_if(
      list_items(fresh_), list_items(fresh_) + size_of(fresh_), std::back_inserter(tuples),
      [](PyObject* object) { return type_of(object) == &PyTuple_Type; });
  forget_passes();
  const int16_t end = static_cast<int16_t>(pass_ + kDepth);
  for (bool first = true; ++pass_ < end && choose_wanted(); first = false) {
    look(tuples.data(), static_cast<ssize_t>(tuples.size()));
    if (!first) {
      look(objects_, count_);
    }
    settle();
    if (all_resolved()) {
      return;
    }
  }
}

void Search::visit_items(PyObject* const* items, ssize_t count) {
  constexpr ssize_t kAhead = 12;
  for (ssize_t index = 0; index < count; ++index) {
    if (index + kAhead < count) {
      nodes_.prefetch(items[index + kAhead]);
    }
    if (items[index] != nullptr) {
      probe(items[index], kItem, index);
    }
  }
}

void Search::visit(PyObject* object, const Type& type) {
  current_ = object;
  current_type_ = &type;
  current_number_ = -1;
  switch (type.kind) {
    case kAtomic:
      return;
    case kFunction:
      if (wants_containers_) {
        probe(at<PyObject*>(object, offsets::kDefaults), kDefaults, 0);
        probe(at<PyObject*>(object, offsets::kKeywordDefaults), kKeywordDefaults, 0);
        probe(at<PyObject*>(object, offsets::kClosure), kClosure, 0);
        probe(at<PyObject*>(object, offsets::kAttributes), kVars, 0);
      }
      return;
    case kType:
    case kModule:
      if (!wants_containers_) {
        return;
      }
      break;
    case kCell:
      probe(at<PyObject*>(object, offsets::kCellContent), kContents, 0);
      return;
    case kList:
      visit_items(list_items(object), size_of(object));
      break;
    case kTuple:
      visit_items(tuple_items(object), size_of(object));
      break;
    case kDict: {
      if (shows_an_instance(object)) {
        return;
      }
      ssize_t position = 0;
      PyObject *key = nullptr, *value = nullptr;
      while (PyDict_Next(object, &position, &key, &value)) {
        probe(value, kValue, reinterpret_cast<int64_t>(key));
        probe(key, kKey, 0);
      }
      break;
    }
    default:
      break;
  }
  if (!type.exact && type.traverse != nullptr) {
    type.traverse(object, &visit_any, this);
  }
}

int32_t Search::holder() {
  if (current_number_ != -1) {
    return current_number_;
  }
  const auto address = reinterpret_cast<uintptr_t>(current_);
  int32_t number = skip_.count(address) ? -2 : nodes_.find(current_);
  if (number == -1) {
    number = ++new_holders_ > cap_ ? -2 : nodes_.add_new(current_);
  }
  current_number_ = number;
  if (number >= 0) {
    switch (current_type_->kind) {
      case kType: begin(number, kClass); break;
      case kModule: begin(number, kOtherModule); break;
      case kFunction: begin(number, kFunctionOrigin); break;
      case kGenerator: begin(number, kGeneratorOrigin); break;
      case kFrame: begin(number, kFrameOrigin); break;
      default: break;
    }
  }
  return number;
}

void Search::found(PyObject* child, How how, int64_t value) {
  const int32_t number = nodes_.find(child);
  if (number < 0 || nodes_[number].wanted != pass_) {
    return;
  }
  if (how == kOpaque) {
    const Kind kind = current_type_->kind;
    const bool dict = types_.of(child).kind == kDict;
    if (kind == kType || kind == kModule) {
      if (!dict) {
        return;
      }
      how = kVars;
    } else if (kind == kGenerator || kind == kFrame) {
      how = kLocal;
    } else if (dict && dict_of(current_, *current_type_) == child) {
      how = kVars;
    }
  }
  const int32_t from = holder();
  if (from < 0) {
    return;
  }
  const auto edge = static_cast<int32_t>(edges_.size());
  edges_.push_back(Edge{from, number, nodes_[number].into, nodes_[from].out, value, how});
  nodes_[number].into = edge;
  nodes_[from].out = edge;
}

}  // namespace
