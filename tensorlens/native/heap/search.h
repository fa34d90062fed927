// Searches the heap backwards: from some objects to their holders, the holders' holders, and so on
// until every object has a path from the root of a name.

#pragma once

#include "nodes.h"

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <vector>

namespace {

constexpr int16_t kMaxReferences = 8;       // in a name, at most
constexpr int16_t kMaxPathReferences = 20;  // find_references(): levels of holders, at most
constexpr uint8_t kMaxHolders = 200;        // find_references(): of one object, at most
constexpr size_t kMaxSearched = 1000;       // find_references(): objects, unless targets are more

class Search {
 public:
  // Texts of keys are numbered from `first_text` on, in the order of the rows' `keys`. `fetch`
  // returns all objects of the heap, whose tuples are searched at the end.
  Search(PyObject* objects, size_t targets, int64_t first_text, PyObject* fetch)
      : objects_(list_items(objects)), count_(size_of(objects)), first_text_(first_text),
        fetch_(fetch), max_new_holders_(4 * targets + 10000), nodes_(targets + 4096) {
    edges_.reserve(targets + 1024);
    skip_.insert(reinterpret_cast<uintptr_t>(objects));
  }

  void anchor(uintptr_t address, Origin origin) {
    const int32_t number = nodes_.add(to_pointer(address));
    if (origin == kTemporary) {
      temporaries_.push_back(number);
    } else {
      if (origin == kMain) {
        main_dicts_.push_back(static_cast<PyObject*>(to_pointer(address)));
      }
      add_root(number, origin);
    }
  }

  void target(uintptr_t address) { targets_.push_back(nodes_.add(to_pointer(address))); }

  void run() {
    resolve();
    for (pass_ = 0; pass_ < kMaxReferences && choose_wanted(); ++pass_) {
      // no path is better than one from __main__: mostly the last scan of all objects is saved
      scan_main();
      if (all_resolved()) {
        return;
      }
      scan(objects_, count_);
      resolve();
    }
    if (!all_resolved()) {
      scan_tuples();
    }
    add_other_roots();
  }

  ~Search() {
    if (all_objects_ != nullptr) {
      Py_DecRef(all_objects_);
    }
  }

  void write(Rows& rows);

  // Finds the references to the targets, to their holders, and so on, but none to an anchor, to an
  // instance of one, to a class or a module. The constructor's `objects` must be all of the heap.
  void find_references();
  bool append_references(PyObject* references, PyObject* searched);

 private:
  void add_root(int32_t number, Origin origin) {
    Node& node = nodes_[number];
    if (!node.resolved) {
      node.resolved = true;
      node.distance = 0;
      node.origin = origin;
      new_roots_.push_back(number);
    }
  }

  bool choose_wanted();
  void build_bloom_filter();
  bool all_resolved() const {
    return std::all_of(targets_.begin(), targets_.end(), [&](int32_t number) {
      return nodes_[number].resolved;
    });
  }

  void scan(PyObject* const* objects, ssize_t count);
  void scan_main();
  void scan_tuples();
  void clear_passes();
  void visit(PyObject* object, const Type& type);
  void visit_items(PyObject* const* items, ssize_t count);
  void resolve();
  void add_other_roots();
  bool is_better(const Edge& edge, int32_t than) const;
  int64_t number_of_key(PyObject* key, bool attribute, Rows& rows);
  void write_row(int32_t number, Rows& rows);

  bool may_be_wanted(const PyObject* object) const {
    const auto address = reinterpret_cast<uintptr_t>(object);
    const uint64_t bit = slot_hash(address) & bloom_mask_;
    return bloom_[bit >> 6] >> (bit & 63) & 1;
  }

  void probe(PyObject* child, How how, int64_t value) {
    if (may_be_wanted(child)) {
      add_edge(child, how, value);
    }
  }

  void add_edge(PyObject* child, How how, int64_t value);
  int32_t holder();

  static int visit_any(PyObject* child, void* self) {
    static_cast<Search*>(self)->probe(child, kOpaque, 0);
    return 0;
  }

  PyObject* const* objects_;
  ssize_t count_;
  int64_t first_text_;
  PyObject* fetch_;
  PyObject* all_objects_ = nullptr;
  size_t max_new_holders_;
  int16_t pass_ = 0;
  Types types_;
  Nodes nodes_;
  std::vector<Edge> edges_;
  std::vector<int32_t> targets_, wanted_, new_roots_, temporaries_;
  std::vector<PyObject*> main_dicts_;  // dicts of the globals of __main__
  std::unordered_set<uintptr_t> skip_;
  struct KeyNumber {
    uint64_t key = 0;
    int64_t number = 0;
  };
  KeyNumber key_numbers_[1024];  // of recent keys: many dicts have the same ones
  std::vector<int8_t> are_attributes_;  // for each row: whether its entries are attributes
  std::vector<uint64_t> bloom_;
  uint64_t bloom_mask_ = 0;
  bool wants_containers_ = false;
  bool wants_all_ = false;  // whether all references to an object are sought and counted
  size_t new_holders_ = 0;
  PyObject* current_ = nullptr;
  const Type* current_type_ = nullptr;
  int32_t current_number_ = -1;  // -1: not known yet, -2: not to be used
};

// Chooses the nodes above unresolved targets whose holders have not been searched yet.
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
  build_bloom_filter();
  return !wanted_.empty();
}

void Search::build_bloom_filter() {
  int bits = 14;
  while ((size_t{1} << bits) < 8 * wanted_.size()) {
    ++bits;
  }
  bloom_mask_ = (uint64_t{1} << bits) - 1;
  bloom_.assign(size_t{1} << (bits - 6), 0);
  wants_containers_ = wants_all_;
  constexpr size_t kAhead = 16;
  for (size_t index = 0; index < wanted_.size(); ++index) {
    if (index + kAhead < wanted_.size()) {
      const uintptr_t ahead = nodes_[wanted_[index + kAhead]].address;
      __builtin_prefetch(reinterpret_cast<const char*>(ahead) + 8);
    }
    const int32_t number = wanted_[index];
    const uint64_t bit = slot_hash(nodes_[number].address) & bloom_mask_;
    bloom_[bit >> 6] |= uint64_t{1} << (bit & 63);
    const Kind kind = types_.of(to_pointer(nodes_[number].address)).kind;
    wants_containers_ |= kind == kTuple || kind == kDict;
  }
}

// Most of the time is spent waiting for memory, so objects are prefetched in two steps: first the
// header and then, when the type is known, the content.
void Search::scan(PyObject* const* objects, ssize_t count) {
  new_holders_ = 0;
  constexpr ssize_t kHeaderAhead = 24, kContentAhead = 8;
  const Type* ahead[kContentAhead];
  for (ssize_t index = -kContentAhead; index < count; ++index) {
    if (index + kHeaderAhead < count) {
      __builtin_prefetch(reinterpret_cast<const char*>(objects[index + kHeaderAhead]) + 8);
    }
    const Type*& turn = ahead[(index + kContentAhead) % kContentAhead];
    const Type* const type = turn;
    if (index + kContentAhead < count) {
      turn = &types_.of(objects[index + kContentAhead]);
      prefetch_content(objects[index + kContentAhead], *turn);
    }
    if (index >= 0) {
      visit(objects[index], *type);
    }
  }
}

void Search::scan_main() {
  scan(main_dicts_.data(), static_cast<ssize_t>(main_dicts_.size()));
  resolve();
}

void Search::clear_passes() {
  for (Node& node : nodes_) {
    node.wanted = node.resolved ? node.wanted : -1;
  }
}

// The maker of a tuple fails if another thread refers to it meanwhile. So the caller's objects
// contain no tuples; they are fetched here for one call, in which no other thread runs.
void Search::scan_tuples() {
  all_objects_ = PyObject_CallNoArgs(fetch_);
  if (all_objects_ == nullptr) {
    PyErr_Clear();
    return;
  }
  skip_.insert(reinterpret_cast<uintptr_t>(all_objects_));
  PyObject* const* items = list_items(all_objects_);
  std::vector<PyObject*> tuples;
  std::copy_if(
      items, items + size_of(all_objects_), std::back_inserter(tuples),
      [](PyObject* object) { return type_of(object) == &PyTuple_Type; });
  clear_passes();
  const int16_t end = static_cast<int16_t>(pass_ + kMaxReferences);
  for (bool first = true; ++pass_ < end && choose_wanted(); first = false) {
    scan(tuples.data(), static_cast<ssize_t>(tuples.size()));
    if (!first) {
      scan(objects_, count_);
    }
    resolve();
    if (all_resolved()) {
      return;
    }
  }
}

void Search::find_references() {
  wants_all_ = true;
  wanted_ = targets_;
  size_t searched = wanted_.size();
  for (pass_ = 0; pass_ < kMaxPathReferences && !wanted_.empty(); ++pass_) {
    for (const int32_t number : wanted_) {
      nodes_[number].wanted = pass_;
    }
    build_bloom_filter();
    size_t number = nodes_.size();
    scan(objects_, count_);
    wanted_.clear();
    for (; number < nodes_.size() && searched < kMaxSearched; ++number) {
      const Type& type = types_.of(to_pointer(nodes_[number].address));
      const int32_t known = nodes_.find(type.type);
      const bool is_end = known >= 0 && nodes_[known].origin == kEnd;
      if (type.kind != kType && type.kind != kModule && !is_end) {
        wanted_.push_back(static_cast<int32_t>(number));
        ++searched;
      }
    }
  }
}

bool Search::append_references(PyObject* references, PyObject* searched) {
  const auto append = [](PyObject* list, int64_t number) {
    PyObject* const item = PyLong_FromLongLong(number);
    const bool is_done = item != nullptr && PyList_Append(list, item) == 0;
    if (item != nullptr) {
      Py_DecRef(item);
    }
    return is_done;
  };
  for (const Edge& edge : edges_) {
    const uintptr_t from = nodes_[edge.holder].address, to = nodes_[edge.child].address;
    auto* const holder = static_cast<PyObject*>(to_pointer(from));
    PyObject* key = edge.how == kValue ? reinterpret_cast<PyObject*>(edge.value) : nullptr;
    How how = edge.how;
    if (how == kOpaque) {
      key = inline_name(holder, types_.of(holder), static_cast<PyObject*>(to_pointer(to)));
      how = key == nullptr ? kOpaque : kAttribute;
    }
    const bool is_tuple = type_of(holder) == &PyTuple_Type;
    if (!(is_tuple ? append(references, size_of(holder)) : !PyList_Append(references, holder)) ||
        !append(references, from) || !append(references, to) ||
        !append(references, edge.references) || !append(references, how) ||
        !(key == nullptr ? append(references, edge.value) : !PyList_Append(references, key))) {
      return false;
    }
  }
  return std::all_of(nodes_.begin(), nodes_.end(), [&](const Node& node) {
    return node.wanted < 0 ||
           (append(searched, node.address) && append(searched, node.holders < kMaxHolders));
  });
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
      if (!wants_all_) {
        return;
      }
      break;
    case kType:
    case kModule:
      if (!wants_containers_) {
        return;
      }
      break;
    case kCell:
      probe(at<PyObject*>(object, offsets::kCellContent), kContents, 0);
      break;
    case kList:
      visit_items(list_items(object), size_of(object));
      break;
    case kTuple:
      visit_items(tuple_items(object), size_of(object));
      break;
    case kDict: {
      if (shows_inline_values(object)) {
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
    number = ++new_holders_ > max_new_holders_ ? -2 : nodes_.add_new(current_);
  }
  current_number_ = number;
  if (number >= 0) {
    switch (current_type_->kind) {
      case kType: add_root(number, kClass); break;
      case kModule: add_root(number, kOtherModule); break;
      case kFunction: add_root(number, kFunctionOrigin); break;
      case kGenerator: add_root(number, kGeneratorOrigin); break;
      case kFrame: add_root(number, kFrameOrigin); break;
      default: break;
    }
  }
  return number;
}

void Search::add_edge(PyObject* child, How how, int64_t value) {
  const int32_t number = nodes_.find(child);
  if (number < 0 || nodes_[number].wanted != pass_) {
    return;
  }
  // a type that is not exact is traversed too, and its references are counted there
  const bool counts = how == kOpaque || current_type_->exact;
  if (how == kOpaque) {
    const Kind kind = current_type_->kind;
    const bool dict = types_.of(child).kind == kDict;
    if (kind == kType || kind == kModule) {
      if (!dict && !wants_all_) {
        return;
      }
      how = dict ? kVars : kOpaque;
    } else if (kind == kGenerator || kind == kFrame) {
      how = kLocal;
    } else if (dict && dict_of(current_, *current_type_) == child) {
      how = kVars;
    }
  }
  const int32_t latest = nodes_[number].into;
  if (latest >= 0 && edges_[latest].holder == current_number_) {
    edges_[latest].references += counts;
    return;
  }
  if (wants_all_ && nodes_[number].holders == kMaxHolders) {
    return;
  }
  const int32_t from = holder();
  if (from < 0) {
    return;
  }
  nodes_[number].holders += wants_all_;
  const auto edge = static_cast<int32_t>(edges_.size());
  edges_.push_back(Edge{from, number, latest, nodes_[from].out, value, counts, how});
  nodes_[number].into = edge;
  nodes_[from].out = edge;
}

}  // namespace
