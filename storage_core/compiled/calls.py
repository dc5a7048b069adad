"""Operations for compiled loops on the bytes of an array, each one instruction or one C function: load and store
big-endian numbers, copy, compare, find bytes, read from files, and ISA-L's CRC-32.

Positions are not checked here: the loops do that.
"""

from __future__ import annotations

import ctypes
from typing import Any

from isal import isal_zlib
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

CRC32_ADDRESS = ctypes.cast(ctypes.CDLL(isal_zlib.__file__).crc32_gzip_refl, ctypes.c_void_p).value
"""ISA-L's crc32_gzip_refl(uint32 start, const uint8 *data, uint64 size); the address differs between processes."""

AT_ONCE = 64
_INT32, _INT64 = ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(ir.IntType(8), AT_ONCE)


def _pointer(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, value=array).data, [at])


def _libc(builder: Any, name: str, returned: Any, *arguments: Any) -> Any:
    kind = ir.FunctionType(returned, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


@intrinsic
def copy(_typing: Any, target: Any, target_at: Any, source: Any, source_at: Any, size: Any) -> Any:
    """Copies `size` bytes from `source`, starting at `source_at`, to `target`, starting at `target_at`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to = _pointer(context, builder, signature.args[0], args[0], args[1])
        cgutils.raw_memcpy(builder, to, _pointer(context, builder, signature.args[2], args[2], args[3]), args[4], 1)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


@intrinsic
def copy_from(_typing: Any, target: Any, target_at: Any, address: Any, size: Any) -> Any:
    """Copies `size` bytes from a memory address to `target`, starting at `target_at`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to = _pointer(context, builder, signature.args[0], args[0], args[1])
        cgutils.raw_memcpy(builder, to, builder.inttoptr(args[2], to.type), args[3], 1)
        return context.get_dummy_value()

    return types.void(target, types.int64, types.int64, types.int64), generate


@intrinsic
def differ(_typing: Any, left: Any, left_at: Any, right: Any, right_at: Any, size: Any) -> Any:
    """Non-zero if the `size` bytes of two arrays differ."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        one = _pointer(context, builder, signature.args[0], args[0], args[1])
        other = _pointer(context, builder, signature.args[2], args[2], args[3])
        return _libc(builder, "memcmp", _INT32, one, other, args[4])

    return types.int32(left, types.int64, right, types.int64, types.int64), generate


@intrinsic
def position_of(_typing: Any, data: Any, start: Any, stop: Any, byte: Any) -> Any:
    """The first position in [start, stop) of `data` that holds `byte`; `stop` if none does."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        begin = _pointer(context, builder, signature.args[0], args[0], args[1])
        found = _libc(builder, "memchr", begin.type, begin, args[3], builder.sub(args[2], args[1]))
        distance = builder.sub(builder.ptrtoint(found, _INT64), builder.ptrtoint(begin, _INT64))
        none = builder.icmp_unsigned("==", builder.ptrtoint(found, _INT64), _INT64(0))
        return builder.select(none, args[2], builder.add(args[1], distance))

    return types.int64(data, types.int64, types.int64, types.int32), generate


@intrinsic
def places_of(_typing: Any, data: Any, at: Any, byte: Any) -> Any:
    """A bit mask of which of the AT_ONCE bytes from `data[at]` on equal `byte`; the lowest bit is the first byte."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        begin = builder.bitcast(_pointer(context, builder, signature.args[0], args[0], args[1]), _VECTOR.as_pointer())
        nothing, first = ir.Constant(_VECTOR, ir.Undefined), _INT32(0)
        wanted = builder.insert_element(nothing, builder.trunc(args[2], _VECTOR.element), first)
        wanted = builder.shuffle_vector(wanted, nothing, ir.Constant(ir.VectorType(_INT32, AT_ONCE), [0] * AT_ONCE))
        return builder.bitcast(builder.icmp_unsigned("==", builder.load(begin, align=1), wanted), _INT64)

    return types.uint64(data, types.int64, types.int64), generate


@intrinsic
def lowest_bit(_typing: Any, _bits: Any) -> Any:
    """The number of the lowest set bit; at least one bit must be set."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.IntType(1)(1))

    return types.int64(types.uint64), generate


@intrinsic
def crc32(_typing: Any, address: Any, data: Any, start: Any, size: Any) -> Any:
    """CRC-32 of `size` bytes from `data[start]` on, by the function at `address`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        begin = _pointer(context, builder, signature.args[1], args[1], args[2])
        kind = ir.FunctionType(_INT32, [_INT32, begin.type, _INT64])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), [_INT32(0), begin, args[3]])

    return types.uint32(types.int64, data, types.int64, types.int64), generate


@intrinsic
def pread(_typing: Any, descriptor: Any, target: Any, target_at: Any, size: Any, position: Any) -> Any:
    """Reads up to `size` bytes of a file from `position` on to `target[target_at]` on. Returns how many, or -1."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to = _pointer(context, builder, signature.args[1], args[1], args[2])
        return _libc(builder, "pread", _INT64, builder.trunc(args[0], _INT32), to, args[3], args[4])

    return types.int64(types.int64, target, types.int64, types.int64, types.int64), generate


def _load(width: int, data: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _pointer(context, builder, signature.args[0], args[0], args[1])
        number = builder.bswap(builder.load(builder.bitcast(place, ir.IntType(width).as_pointer()), align=1))
        return number if width == _INT64.width else builder.sext(number, _INT64)

    return types.int64(data, types.int64), generate


@intrinsic
def int64_at(_typing: Any, data: Any, _at: Any) -> Any:
    """The big-endian number in the eight bytes from `data[at]` on."""
    return _load(64, data)


@intrinsic
def int32_at(_typing: Any, data: Any, _at: Any) -> Any:
    """The big-endian number in the four bytes from `data[at]` on."""
    return _load(32, data)


@intrinsic
def int16_at(_typing: Any, data: Any, _at: Any) -> Any:
    """The big-endian number in the two bytes from `data[at]` on."""
    return _load(16, data)


def _store(target: Any, at: Any, number: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to = _pointer(context, builder, signature.args[0], args[0], args[1])
        to = builder.bitcast(to, args[2].type.as_pointer())
        builder.store(builder.bswap(args[2]), to, align=1)
        return context.get_dummy_value()

    return types.void(target, at, number), generate


@intrinsic
def store_int64(_typing: Any, target: Any, at: Any, _number: Any) -> Any:
    """Stores a number in the eight bytes from `target[at]` on, big-endian."""
    return _store(target, types.int64, types.int64)


@intrinsic
def store_int32(_typing: Any, target: Any, at: Any, _number: Any) -> Any:
    """Stores a number in the four bytes from `target[at]` on, big-endian."""
    return _store(target, types.int64, types.int32)


@intrinsic
def store_int16(_typing: Any, target: Any, at: Any, _number: Any) -> Any:
    """Stores a number in the two bytes from `target[at]` on, big-endian."""
    return _store(target, types.int64, types.int16)
