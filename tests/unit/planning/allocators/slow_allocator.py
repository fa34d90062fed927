"""The rules of torch's caching allocator, written down plainly: lists, and every search a scan."""

from __future__ import annotations

from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20
FIRST = 1 << 44


class NoRoom(Exception):
    pass


@dataclass(eq=False)
class Block:
    address: int
    size: int
    state: str = "inactive"
    requested: int = 0


@dataclass(eq=False)
class Held:
    stream: int
    small: bool
    blocks: list[Block]
    unit: int = 0
    """Of an expandable segment; 0 for another one."""

    @property
    def base(self) -> int:
        return self.blocks[0].address

    @property
    def whole(self) -> bool:
        return len(self.blocks) == 1

    def merge(self) -> None:
        """Make one of neighbours that are both free, or both unmapped."""
        merged = [self.blocks[0]]
        for block in self.blocks[1:]:
            last = merged[-1]
            if block.state == last.state and block.state in ("inactive", "unmapped"):
                last.size += block.size
            else:
                merged.append(block)
        self.blocks = merged

    def cut(self, block: Block, size: int) -> Block:
        """Cut a block after so many bytes and return what follows."""
        rest = Block(block.address + size, block.size - size, block.state)
        self.blocks.insert(self.blocks.index(block) + 1, rest)
        block.size = size
        return rest


class SlowAllocator:
    def __init__(self, settings, capacity=None, total=None):
        self.settings = settings
        self.capacity = capacity
        self.total = capacity if total is None else total
        self.held: list[Held] = []
        self.next = FIRST
        self.peaks = dict.fromkeys(self.levels(), 0)

    # what is seen from outside

    def malloc(self, nbytes, stream=0):
        if nbytes == 0:
            return 0
        size = self.rounded(nbytes)
        small = size <= MIB
        found = self.search(size, stream, small)
        if found is None:
            found = self.fresh(size, stream, small)
        held, block = found
        rest = block.size - size
        limit = self.settings.max_split_size
        if small or self.settings.expandable_segments:
            splits = rest >= 512
        else:
            splits = rest > MIB and (limit is None or size < limit)
        if splits:
            held.cut(block, size)
        block.state, block.requested = "active_allocated", nbytes
        self.peak()
        return block.address

    def free(self, address):
        if address == 0:
            return
        held, block = self.at(address)
        self.give_back(held, block)

    def empty_cache(self):
        for held in list(self.held):
            if held.unit:
                self.unmap(held)
            elif held.whole and held.blocks[0].state == "inactive":
                self.held.remove(held)
        self.peak()

    def levels(self):
        blocks = [block for held in self.held for block in held.blocks]
        return {
            "allocated": sum(b.size for b in blocks if b.state == "active_allocated"),
            "requested": sum(block.requested for block in blocks),
            "reserved": self.reserved(),
        }

    def stretches(self):
        found = []
        for held in self.held:
            mapped = False
            for block in held.blocks:
                if block.state == "unmapped":
                    mapped = False
                    continue
                if not mapped:
                    found.append((held.stream, held.small, bool(held.unit), []))
                mapped = True
                found[-1][3].append((block.address, block.size, block.state, block.requested))
        return sorted(found, key=lambda each: each[3])

    # how it is done

    def rounded(self, nbytes):
        if nbytes < 512:
            return 512
        table = self.settings.roundup_power2_divisions
        parts = 0
        if table:
            interval = 0
            while interval < 15 and nbytes >= 2 * MIB << interval:
                interval += 1
            parts = table[interval]
        if parts > 1 and nbytes > 512 * parts:
            floor = 512
            while floor * 2 <= nbytes:
                floor *= 2
            size = floor
            while size < nbytes:
                size += floor // parts
            return size
        return (nbytes + 511) // 512 * 512

    def reserved(self):
        blocks = (block for held in self.held for block in held.blocks)
        return sum(block.size for block in blocks if block.state != "unmapped")

    def peak(self):
        for name, level in self.levels().items():
            self.peaks[name] = max(self.peaks[name], level)

    def at(self, address):
        return next((h, b) for h in self.held for b in h.blocks if b.address == address)

    def give_back(self, held, block):
        block.state, block.requested = "inactive", 0
        held.merge()
        self.peak()

    def free_blocks(self, stream, small):
        found = [
            (block.size, block.address, held, block)
            for held in self.held
            if (held.stream, held.small) == (stream, small)
            for block in held.blocks
            if block.state == "inactive"
        ]
        return [each[2:] for each in sorted(found, key=lambda each: each[:2])]

    def search(self, size, stream, small):
        fitting = [each for each in self.free_blocks(stream, small) if each[1].size >= size]
        if not fitting:
            return None
        place = 0
        if self.settings.expandable_segments:
            while place + 1 < len(fitting) and fitting[place][0].unit:
                if self.room(*fitting[place + 1]) >= self.room(*fitting[place]):
                    break
                place += 1
        limit, block = self.settings.max_split_size, fitting[place][1]
        if limit is not None:
            if size < limit and block.size >= limit:
                return None
            if size >= limit and block.size >= size + self.settings.max_non_split_rounding:
                return None
        return fitting[place]

    def room(self, held, block):
        following = held.blocks[held.blocks.index(block) + 1 :][:1]
        grows = sum(each.size for each in following if each.state == "unmapped")
        return block.size + grows

    def fresh(self, size, stream, small):
        found = self.take(size, stream, small)
        if found is None and self.release_oversize(size, stream, small):
            found = self.take(size, stream, small)
        if found is None:
            self.empty_cache()
            found = self.take(size, stream, small)
        if found is None:
            raise NoRoom
        return found

    def take(self, size, stream, small):
        if small:
            total = 2 * MIB
        elif size < 10 * MIB:
            total = self.settings.large_segment_size
        else:
            total = (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
        if self.settings.expandable_segments:
            return self.grow(size, stream, small)
        if not self.has(total):
            return None
        held = Held(stream, small, [Block(self.place(total), total)])
        self.held.append(held)
        self.peak()
        return held, held.blocks[0]

    def has(self, size):
        return self.capacity is None or self.reserved() + size <= self.capacity

    def place(self, size):
        address = self.next
        self.next += (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
        return address

    def grow(self, size, stream, small):
        held, start = self.stretch(size, stream, small)
        while True:
            block = next(b for b in held.blocks if b.address <= start < b.address + b.size)
            if block.state == "inactive" and block.size >= size:
                return held, block
            if block.state == "inactive":
                start = block.address
                after = held.blocks[held.blocks.index(block) + 1]
                missing = min(size - block.size, after.size)
            else:
                after, missing = block, min(size, block.size)
            mapped = (missing + held.unit - 1) // held.unit * held.unit
            if not self.has(mapped):
                return None
            if mapped < after.size:
                held.cut(after, mapped)
            after.state = "inactive"
            held.merge()
            self.peak()

    def stretch(self, size, stream, small):
        """Return where enough free or unmapped memory begins, at the lowest address."""
        mine = [h for h in self.held if h.unit and (h.stream, h.small) == (stream, small)]
        for held in sorted(mine, key=lambda each: each.base):
            for place, block in enumerate(held.blocks):
                if block.state != "unmapped":
                    continue
                first = place
                if place and held.blocks[place - 1].state == "inactive":
                    first = place - 1
                found = 0
                for each in held.blocks[first:]:
                    if each.state not in ("inactive", "unmapped"):
                        break
                    found += each.size
                if found >= size:
                    return held, held.blocks[first].address
        unit = 2 * MIB if small else self.settings.large_segment_size
        total = max(1 << 40, size) if self.total is None else self.total + self.total // 8
        extent = (total + unit - 1) // unit * unit
        held = Held(stream, small, [Block(self.place(extent), extent, "unmapped")], unit)
        self.held.append(held)
        return held, held.base

    def unmap(self, held):
        base, unit = held.base, held.unit
        if not any(block.state == "inactive" for block in held.blocks):
            return
        for block in list(held.blocks):
            if block.state != "inactive":
                continue
            begin = (block.address - base + unit - 1) // unit * unit + base
            end = (block.address + block.size - base) // unit * unit + base
            if begin >= end:
                continue
            if end < block.address + block.size:
                held.cut(block, end - block.address)
            if begin > block.address:
                block = held.cut(block, begin - block.address)
            block.state = "unmapped"
        held.merge()
        if held.whole and held.blocks[0].state == "unmapped":
            self.held.remove(held)

    def release_oversize(self, size, stream, small):
        limit = self.settings.max_split_size
        if limit is None:
            return False
        wanted = max(size, limit)
        cached = self.free_blocks(stream, small)
        enough = [held for held, block in cached if block.size >= wanted]
        if enough and not enough[0].unit:
            self.held.remove(enough[0])
            return True
        released = 0
        for held, block in reversed([each for each in cached if each[1].size < wanted]):
            if released >= wanted or block.size < limit:
                break
            if not held.unit:
                released += block.size
                self.held.remove(held)
        return released >= wanted
