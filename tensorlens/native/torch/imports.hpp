// Replaces a function in all libraries that import it.
//
// A library calls an imported function through an entry of its global offset table, which the
// loader fills (System V ABI, chapter 5: dynamic linking). If the loader has made the entry
// read-only, it is writable only while it is replaced.

#pragma once

#include <cstdint>
#include <cstring>

#include <dlfcn.h>

#ifdef __linux__
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace {

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))

#ifdef __x86_64__
constexpr uint32_t kTableTypes[] = {R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT};
#else
constexpr uint32_t kTableTypes[] = {R_AARCH64_JUMP_SLOT, R_AARCH64_GLOB_DAT};
#endif

struct Replacement {
  const char* name;
  void* by;
  const void* own;  // an address in this library
  int64_t libraries = 0;
};

inline uintptr_t page_of(uintptr_t address) {
  return address & ~(static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)) - 1);
}

struct Relocations {
  uintptr_t begin = 0, size = 0;
};

// A loaded library and its relocations.
class Library {
 public:
  explicit Library(const dl_phdr_info& info) : info_(info) {
    for (int index = 0; index < info.dlpi_phnum; ++index) {
      const ElfW(Phdr)& header = info.dlpi_phdr[index];
      if (header.p_type == PT_DYNAMIC) {
        read(reinterpret_cast<const ElfW(Dyn)*>(info.dlpi_addr + header.p_vaddr));
      } else if (header.p_type == PT_GNU_RELRO) {
        // the loader protects whole pages: the rest of the last page stays writable
        protected_ = info.dlpi_addr + header.p_vaddr;
        protected_end_ = page_of(protected_ + header.p_memsz);
      }
    }
  }

  bool holds(const void* place) const {
    const auto address = reinterpret_cast<uintptr_t>(place);
    for (int index = 0; index < info_.dlpi_phnum; ++index) {
      const ElfW(Phdr)& header = info_.dlpi_phdr[index];
      const uintptr_t begin = info_.dlpi_addr + header.p_vaddr;
      if (header.p_type == PT_LOAD && begin <= address && address < begin + header.p_memsz) {
        return true;
      }
    }
    return false;
  }

  bool replace(const Replacement& replacement) const {
    if (names_ == nullptr || symbols_ == nullptr) {
      return false;
    }
    bool replaced = false;
    for (const Relocations& part : {calls_, others_}) {
      const auto* entry = reinterpret_cast<const ElfW(Rela)*>(part.begin);
      const auto* const end = reinterpret_cast<const ElfW(Rela)*>(part.begin + part.size);
      for (; entry != nullptr && entry < end; ++entry) {
        const auto type = static_cast<uint32_t>(ELF64_R_TYPE(entry->r_info));
        if (type != kTableTypes[0] && type != kTableTypes[1]) {
          continue;
        }
        const ElfW(Sym)& symbol = symbols_[ELF64_R_SYM(entry->r_info)];
        if (std::strcmp(names_ + symbol.st_name, replacement.name) == 0) {
          replaced = write(info_.dlpi_addr + entry->r_offset, replacement.by) || replaced;
        }
      }
    }
    return replaced;
  }

 private:
  void read(const ElfW(Dyn)* entry) {
    bool has_addends = true;
    for (; entry->d_tag != DT_NULL; ++entry) {
      switch (entry->d_tag) {
        case DT_STRTAB: names_ = reinterpret_cast<const char*>(at(entry)); break;
        case DT_SYMTAB: symbols_ = reinterpret_cast<const ElfW(Sym)*>(at(entry)); break;
        case DT_JMPREL: calls_.begin = at(entry); break;
        case DT_PLTRELSZ: calls_.size = entry->d_un.d_val; break;
        case DT_RELA: others_.begin = at(entry); break;
        case DT_RELASZ: others_.size = entry->d_un.d_val; break;
        case DT_PLTREL: has_addends = entry->d_un.d_val == DT_RELA; break;
        default: break;
      }
    }
    if (!has_addends) {
      calls_ = Relocations();
    }
  }

  // The loader replaces offsets by addresses, but not in the kernel's own library.
  uintptr_t at(const ElfW(Dyn)* entry) const {
    const uintptr_t value = entry->d_un.d_ptr;
    return value < info_.dlpi_addr ? info_.dlpi_addr + value : value;
  }

  bool write(uintptr_t place, void* value) const {
    auto* const entry = reinterpret_cast<void**>(place);
    if (__atomic_load_n(entry, __ATOMIC_RELAXED) == value) {
      return true;
    }
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void* const begin = reinterpret_cast<void*>(page_of(place));
    const bool is_protected = protected_ <= place && place < protected_end_;
    if (is_protected && mprotect(begin, page, PROT_READ | PROT_WRITE) != 0) {
      return false;
    }
    __atomic_store_n(entry, value, __ATOMIC_RELEASE);
    if (is_protected) {
      mprotect(begin, page, PROT_READ);
    }
    return true;
  }

  const dl_phdr_info& info_;
  const char* names_ = nullptr;
  const ElfW(Sym)* symbols_ = nullptr;
  Relocations calls_, others_;
  uintptr_t protected_ = 0, protected_end_ = 0;
};

int visit_library(dl_phdr_info* info, size_t, void* data) {
  auto& replacement = *static_cast<Replacement*>(data);
  const Library library(*info);
  // this library keeps calling the function itself
  if (!library.holds(replacement.own) && library.replace(replacement)) {
    ++replacement.libraries;
  }
  return 0;
}

// Returns the number of libraries that import `function` and now have `by` instead.
int64_t replace_import(void* function, void* by) {
  Dl_info known;
  if (dladdr(function, &known) == 0 || known.dli_sname == nullptr) {
    return 0;
  }
  Replacement replacement{known.dli_sname, by, reinterpret_cast<const void*>(&replace_import)};
  dl_iterate_phdr(&visit_library, &replacement);
  return replacement.libraries;
}

#else

int64_t replace_import(void*, void*) {
  return 0;
}

#endif

}  // namespace
