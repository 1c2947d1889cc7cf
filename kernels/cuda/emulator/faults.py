"""From what the emulator found wrong to one sentence: what, where, by which block and thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernels.launch.errors import KernelError, Program

Fields = dict[str, str]
LineOf = Callable[[int], "int | None"]

_KINDS = ("load", "store", "atomic")
_COLLECTIVES = (
    "__shfl_sync __shfl_up_sync __shfl_down_sync __shfl_xor_sync __ballot_sync __any_sync "
    "__all_sync __syncwarp __reduce_add_sync"
).split()
_RETURNED, _AT_BARRIER = 3, 1


def _place(linear: int, size: Program) -> Program:
    return (linear % size[0], linear // size[0] % size[1], linear // size[0] // size[1])


def _spaced(text: str) -> str:
    """A field that holds spaces, which a record can't."""
    return text.replace("\x01", " ")


class Faults:
    """Turns the fields of a fault into a KernelError; one for each launch.

    `arguments` are (name, shape, elements in the span, item size) for each pointer.
    """

    def __init__(
        self,
        kernel: str,
        grid: Program,
        block: Program,
        arguments: Sequence[tuple[str, tuple[int, ...], int, int]],
        line_of: LineOf,
        time_limit_s: float,
    ) -> None:
        self.kernel, self.grid, self.block = kernel, grid, block
        self.arguments, self.line_of, self.time_limit_s = arguments, line_of, time_limit_s

    def error(self, fields: Fields) -> KernelError:
        """The error of one fault."""
        what = fields["what"]
        program = _place(int(fields["block"]), self.grid)
        thread = _place(int(fields["thread"]), self.block)
        line = self._line(fields)
        argument: str | None = fields.get("name") or None
        index: int | None = None
        if "argument" in fields and int(fields["argument"]) >= 0:
            argument, _, _, item = self.arguments[int(fields["argument"])]
            index = int(fields["offset"]) // item
        elif "offset" in fields and "item" in fields:
            index = int(fields["offset"]) // max(1, int(fields["item"]))
        at = "" if line is None else f", line {line}"
        where = f"kernel {self.kernel!r}, block {program}, thread {thread}{at}: "
        kind, sentence = getattr(self, f"_{what}")(fields, argument, index)
        return KernelError(
            where + sentence,
            kind=kind,
            kernel=self.kernel,
            program=program,
            argument=argument,
            index=index,
            line=line,
        )

    def _line(self, fields: Fields) -> int | None:
        return int(fields["line"]) if "line" in fields else self.line_of(int(fields["address"]))

    def _access(self, fields: Fields) -> str:
        return ("an " if fields["kind"] == "2" else "a ") + _KINDS[int(fields["kind"])]

    def _thread(self, number: str) -> str:
        return f"thread {_place(int(number), self.block)}"

    def _bounds(self, fields: Fields, argument: str, index: int) -> tuple[str, str]:
        _, shape, count, item = self.arguments[int(fields["argument"])]
        size = int(fields["size"])
        if size > item and 0 <= index < count:
            # It begins inside: the width is the fault.
            has = "1 element" if count == 1 else f"{count} elements"
            return "bounds", (
                f"{self._access(fields)} of {size} bytes ({size // item} elements) from index "
                f"{index} of {argument!r}, which has {has} (shape {shape})"
            )
        spans = f"spans the indices 0 to {count - 1}" if count else "has no element"
        return "bounds", (
            f"{self._access(fields)} at index {index} of {argument!r}, which {spans} "
            f"(shape {shape})"
        )

    def _shared_bounds(self, fields: Fields, argument: str, index: int) -> tuple[str, str]:
        count = int(fields["bytes"]) // int(fields["item"])
        return "bounds", (
            f"{self._access(fields)} at index {index} of the shared {argument!r}, which has "
            f"{count} elements, 0 to {count - 1}"
        )

    def _uninitialised(self, fields: Fields, argument: str, index: int) -> tuple[str, str]:
        return "uninitialised", (
            f"{self._access(fields)} at index {index} of the shared {argument!r}, which no thread "
            f"of the block has written"
        )

    def _unwritten(self, fields: Fields, argument: str, index: int) -> tuple[str, str]:
        return "uninitialised", (
            f"{self._access(fields)} at index {index} of {argument!r}, which was made empty and "
            f"which nobody has written; store there first, or make it with torch.zeros"
        )

    def _race(self, fields: Fields, argument: str, index: int) -> tuple[str, str]:
        shared = fields["where"] == "shared"
        line = self.line_of(int(fields["otheraddress"]))
        at = "" if line is None else f" on line {line}"
        block = _place(int(fields["otherblock"]), self.grid)
        same = block == _place(int(fields["block"]), self.grid)
        who = self._thread(fields["otherthread"]) + ("" if same else f" of block {block}")
        name = f"the shared {argument!r}" if shared else repr(argument)
        access = f"{self._access(fields)} at index {index} of {name}"
        stores = fields["did"] == "stored" and _KINDS[int(fields["kind"])] == "store"
        if same and stores and line is not None and line == self._line(fields):
            # A barrier orders one line after another, and not a line's own stores.
            return "race", (
                f"{access}, which {who} also stores, on the same line; only one thread should"
            )
        did = "stored to" if fields["did"] == "stored" else "read"
        close = (
            "with no barrier between them; a __syncthreads() orders them"
            if same
            else "in the same launch; blocks run in no fixed order"
        )
        return "race", f"{access}, which {who} {did}{at} {close}"

    def _other_lane(self, fields: Fields) -> str:
        other, line = self._thread(fields["other"]), fields["otherline"]
        state = int(fields["otherstate"])
        if state == _RETURNED:
            return f"{other} has returned"
        stop = "at a __syncthreads() on" if state == _AT_BARRIER else "on"
        return f"{other} waits {stop} line {line}"

    def _barrier(self, fields: Fields, *_: object) -> tuple[str, str]:
        return "barrier", (
            f"a divergent __syncthreads(): {self._other_lane(fields)}; every thread of a block "
            f"must reach the same barrier"
        )

    def _collective(self, fields: Fields, *_: object) -> tuple[str, str]:
        return "collective", (
            f"a divergent {_COLLECTIVES[int(fields['how'])]}: {self._other_lane(fields)}, but the "
            f"mask names it; every lane that the mask names must reach the same call"
        )

    def _mask(self, fields: Fields, *_: object) -> tuple[str, str]:
        return "collective", (
            f"the mask {int(fields['mask']):#010x} does not name the lane that calls; "
            f"0xffffffff names all"
        )

    def _lane(self, fields: Fields, *_: object) -> tuple[str, str]:
        why = {
            "absent": "which the block is too small to have",
            "returned": "which has returned",
            "masked": "which the mask does not name",
        }[fields["why"]]
        return "collective", f"a shuffle from lane {fields['from']}, {why}"

    def _misaligned(self, fields: Fields, argument: str | None, index: int) -> tuple[str, str]:
        of = f" of {argument!r} at index {index}" if argument else " of shared memory"
        return "misaligned", (
            f"{self._access(fields)} of {fields['size']} bytes{of}, whose address is no multiple "
            f"of {fields['size']}"
        )

    def _pointer(self, fields: Fields, *_: object) -> tuple[str, str]:
        address = int(fields["address2"])
        if address < 1 << 16:
            return "pointer", f"{self._access(fields)} through a null pointer"
        return "pointer", (
            f"an access at address {address:#x}, which belongs to no argument; make pointers from "
            f"the arguments"
        )

    def _timeout(self, *_: object) -> tuple[str, str]:
        return "timeout", (
            f"the launch did not end within {self.time_limit_s:g} s, and this thread was running; "
            f"look for a loop that never ends, or launch fewer blocks"
        )

    def _endless(self, *_: object) -> tuple[str, str]:
        return "timeout", (
            "this thread made more requests to memory than can be kept until its warp comes after "
            "it; look for a loop that never ends"
        )

    def _divide(self, *_: object) -> tuple[str, str]:
        return "divide", "an integer division by zero"

    def _assert(self, fields: Fields, *_: object) -> tuple[str, str]:
        return "assert", f"the assertion `{_spaced(fields['wanted'])}` does not hold"

    def _trap(self, *_: object) -> tuple[str, str]:
        return "assert", "__trap() was reached, which ends the launch"

    def _conversion(self, fields: Fields, *_: object) -> tuple[str, str]:
        return "conversion", (
            f"{fields['value']} does not fit the type {_spaced(fields['type'])}, and C++ leaves "
            f"open what comes out (a GPU takes the nearest number that fits, a CPU another); clamp "
            f"it first, or write __float2int_rz, which takes the nearest everywhere"
        )

    def _shift(self, fields: Fields, *_: object) -> tuple[str, str]:
        return "conversion", (
            f"a number of {fields['bits']} bits is shifted by {fields['by']}, and C++ leaves open "
            f"what comes out (a GPU shifts all bits out, a CPU does not); shift by 0 to "
            f"{int(fields['bits']) - 1}"
        )

    def _stack(self, *_: object) -> tuple[str, str]:
        return "stack", "more than 120 kB of local variables, or a recursion that never ends"

    def _static_shared(self, fields: Fields, *_: object) -> tuple[str, str]:
        return "shared", (
            f"the block declares {fields['bytes']} bytes of static shared memory, and 49152 is "
            f"the most"
        )

    def _no_dynamic(self, _: Fields, argument: str, __: object) -> tuple[str, str]:
        return "shared", (
            f"{argument!r} is dynamic shared memory, but the launch gives none; write "
            f"module.kernel[grid, block, shared_bytes]"
        )
