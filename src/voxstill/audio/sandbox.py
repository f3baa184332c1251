"""What a decoder of untrusted files may do: the formats that it recognises, and the system calls that it makes.

FFmpeg opens what a file names: a playlist inside `x.wav` reads another file or binds a port. So only formats that hold
their own audio are recognised, no address is opened, and the process itself can neither open files nor reach a network.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
from collections.abc import Collection
from typing import Final

_FORMATS = """
    aac ac3 aiff alaw amr amrnb amrwb ape asf ast au avi caf dsf dts dtshd eac3 flac flv g722 gsm loas m4v matroska mlp
    mov mp3 mp4 mpc mpc8 mpeg mpegts mulaw mxf nistsphere nut ogg oma qcp rm sbc sln sox tak truehd tta voc w64 wav webm
    wtv wv xwma
"""
FFMPEG_OPTIONS: Final = {"format_whitelist": ",".join(_FORMATS.split()), "protocol_whitelist": "pipe"}
"""Options of an FFmpeg input that is read from memory: containers and raw streams of audio, and nothing that refers to
other files (concat, HLS, DASH, SDP, RTP, IMF) or devices."""

# System calls by the number of the machine: what memory, the socket to the parent and clocks need.
_CALLS_X86_64 = {
    *(0, 1, 3, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 19, 20, 24, 25, 28, 35, 39, 44, 45, 46, 47, 60, 96, 131, 186),
    *(201, 202, 204, 219, 228, 229, 230, 231, 262, 271, 309, 318, 334),
}
"""read write close fstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn readv writev
sched_yield mremap madvise nanosleep getpid sendto recvfrom sendmsg recvmsg exit gettimeofday sigaltstack gettid
time futex sched_getaffinity restart_syscall clock_gettime clock_getres clock_nanosleep exit_group newfstatat ppoll
getcpu getrandom rseq."""
_CALLS_AARCH64 = {
    *(57, 62, 63, 64, 65, 66, 73, 79, 80, 93, 94, 98, 101, 113, 114, 115, 123, 124, 128, 132, 134, 135, 139),
    *(168, 169, 172, 178, 206, 207, 211, 212, 214, 215, 216, 222, 226, 233, 278, 293),
}
"""The same calls, where the machine has them."""
_MACHINES = {"x86_64": (0xC000003E, _CALLS_X86_64, 234), "aarch64": (0xC00000B7, _CALLS_AARCH64, 131)}
"""Constant of the kernel (linux/audit.h), allowed calls and tgkill of a machine."""
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # instructions of a filter (linux/bpf_common.h)
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
_NUMBER_AT, _MACHINE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16  # in struct seccomp_data


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def confine() -> bool:
    """Give up, for the rest of this process, all that decoding from memory does not need.

    No file, socket or process can be opened or started any more, and nothing written but to what is open. Returns
    whether the kernel filters system calls; where it does not, limits of resources keep files and sockets closed.
    """
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))  # what is open stays open
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    is_filtered = False
    if platform.machine() in _MACHINES and struct.calcsize("P") == 8:
        filter_bytes = _filter(*_MACHINES[platform.machine()], os.getpid())
        program = _Program(len(filter_bytes) // 8, filter_bytes)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        is_filtered = libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0
    return is_filtered


def _filter(machine: int, calls: Collection[int], signal_call: int, process: int) -> bytes:
    """A filter of system calls (seccomp(2), classic BPF): those listed pass, any other fails with EPERM.

    `signal_call`, tgkill, passes where it is for this process itself: so a library aborts.
    """
    refuse = 3 + len(calls) + 3
    allow = refuse + 1

    def jump(at: int, value: int, if_equal: int, otherwise: int) -> bytes:
        return _instruction(_JUMP_IF_EQUAL, value, if_equal - at - 1, otherwise - at - 1)

    return b"".join(
        (
            _instruction(_LOAD, _MACHINE_AT),
            jump(1, machine, 2, refuse),
            _instruction(_LOAD, _NUMBER_AT),
            *(jump(at, number, allow, at + 1) for at, number in enumerate(sorted(calls), start=3)),
            jump(refuse - 3, signal_call, refuse - 2, refuse),
            _instruction(_LOAD, _FIRST_ARGUMENT_AT),
            jump(refuse - 1, process, allow, refuse),
            _instruction(_RETURN, _REFUSE),
            _instruction(_RETURN, _ALLOW),
        )
    )


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
