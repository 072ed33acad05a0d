"""Runs inside a sandbox: tries each door with harmless arguments and prints what answered.

``denied`` maps each call to the name of the error that it got ("reached" where the call got past
the policy, whatever it then said).
"""

# mypy: ignore-errors
# ruff: noqa: E501, PTH112, PTH208, T201

import ctypes
import errno
import json
import os
import platform
import socket

libc = ctypes.CDLL(None, use_errno=True)
assert platform.machine() == "x86_64"

CALLS = {
    "mount": (165, 0, 0, 0, 0, 0), "umount2": (166, 0, 0), "pivot_root": (155, 0, 0),
    "unshare user": (272, 0x10000000), "unshare mount": (272, 0x20000), "setns": (308, -1, 0),
    "open_tree": (428, -1, 0, 0), "move_mount": (429, -1, 0, -1, 0, 0), "fsopen": (430, 0, 0),
    "fsconfig": (431, -1, 0, 0, 0, 0), "fsmount": (432, -1, 0, 0), "fspick": (433, -1, 0, 0),
    "mount_setattr": (442, -1, 0, 0, 0, 0), "name_to_handle_at": (303, -1, 0, 0, 0, 0),
    "open_by_handle_at": (304, -1, 0, 0), "bpf": (321, 0, 0, 0), "perf_event_open": (298, 0, 0, 0, 0, 0),
    "userfaultfd": (323, 0), "keyctl": (250, 0, 0), "add_key": (248, 0, 0, 0, 0),
    "request_key": (249, 0, 0, 0, 0), "kexec_load": (246, 0, 0, 0, 0), "kexec_file_load": (320, -1, -1),
    "init_module": (175, 0, 0, 0), "finit_module": (313, -1, 0, 0), "delete_module": (176, 0, 0),
    "reboot": (169, 0, 0, 0, 0), "swapon": (167, 0, 0), "swapoff": (168, 0), "acct": (163, 0),
    "settimeofday": (164, 0, 0), "clock_settime": (227, 0, 0), "adjtimex": (159, 0),
    "quotactl": (179, 0, 0, 0, 0), "syslog": (103, 10, 0, 0), "iopl": (172, 3), "ioperm": (173, 0, 0, 0),
    "ptrace": (101, 0, 0, 0, 0), "process_vm_readv": (310, 1, 0, 0, 0, 0, 0),
    "process_vm_writev": (311, 1, 0, 0, 0, 0, 0), "kcmp": (312, 1, 1, 0, 0, 0),
    "pidfd_getfd": (438, -1, 0, 0), "process_madvise": (440, -1, 0, 0, 0, 0),
    "lookup_dcookie": (212, 0, 0, 0), "mbind": (237, 0, 0, 0, 0, 0, 0),
    "set_mempolicy": (238, 0, 0, 0), "move_pages": (279, 0, 0, 0, 0, 0, 0),
    "fanotify_init": (300, 0, 0), "personality": (135, 0x40000), "memfd_secret": (447, 0),
    "vhangup": (153,), "sysfs": (139, 1, 0), "ustat": (136, 0, 0), "uselib": (134, 0),
    "io_uring_setup": (425, 1, 0), "io_uring_enter": (426, -1, 0, 0, 0, 0),
    "io_uring_register": (427, -1, 0, 0, 0), "clone3": (435, 0, 0), "newer than known": (463, 0),
    "x32 getpid": (0x40000027,),
    "clone user": (56, 0x10000000 | 17, 0, 0, 0, 0), "clone mount": (56, 0x20000 | 17, 0, 0, 0, 0),
    "clone net": (56, 0x40000000 | 17, 0, 0, 0, 0), "clone pid": (56, 0x20000000 | 17, 0, 0, 0, 0),
}  # fmt: skip


def call(number, *arguments):
    wide = [ctypes.c_long(a) for a in arguments]
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *wide)
    return "reached" if result >= 0 else errno.errorcode[ctypes.get_errno()]


def attempt(action):
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "reached"


def in_child(action):
    """Some answers would change us; a child tells them and ends."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, str(action()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    said = os.read(reader, 100).decode()
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    return said or f"status {status}"


root = os.open("/", os.O_RDONLY)
buffer = ctypes.create_string_buffer(4096)


def ioctl(fd, request):
    ctypes.set_errno(0)
    result = libc.syscall(16, ctypes.c_long(fd), ctypes.c_ulong(request), buffer)
    return "reached" if result >= 0 else errno.errorcode[ctypes.get_errno()]


def open_for_writing(path):
    def action():
        file = os.open(path, os.O_WRONLY)
        if os.fstat(file).st_rdev == os.makedev(1, 3):
            raise OSError(errno.ENOENT, "the null device lies over it")
        os.close(file)

    return attempt(action)


def read_some(path):
    def action():
        if os.path.isdir(path):
            if not os.listdir(path):
                raise OSError(errno.ENOENT, "empty")
            return
        with open(path, "rb") as file:
            if not file.read(32):
                raise OSError(errno.ENODATA, "empty")

    return attempt(action)


def make_device():
    try:
        os.mknod("/probe-device", 0o60600, os.makedev(7, 1))
    except OSError as error:
        return errno.errorcode[error.errno]
    return open_for_writing("/probe-device")


def inotify_instances():
    made = 0
    while made < 400 and libc.inotify_init() >= 0:
        made += 1
    return made


plain, clone = "/probe-plain", "/probe-clone"
with open(plain, "w") as file:
    file.write("x" * 10)
tell = {
    "calls": {name: in_child(lambda c=c: call(*c)) for name, c in CALLS.items()},
    "families": {
        n: attempt(lambda n=n: socket.socket(n, socket.SOCK_DGRAM if n != 40 else socket.SOCK_STREAM).close())
        for n in (1, 2, 10, 16, 40, 38, 17, 30, 31, 15, 33, 44, 42)
    },
    "pair of vsock": call(53, 40, 1, 0, ctypes.addressof(buffer)),
    "raw socket": attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close()),
    "device": make_device(),
    "ioctls": {
        "subvolume create": ioctl(root, 0x5000940E), "dirty upper bits": ioctl(root, 0x1_5000940E),
        "snapshot create v2": ioctl(root, 0x50009417), "tree search": ioctl(root, 0xD0009411),
        "TIOCSTI": ioctl(0, 0x5412), "TIOCLINUX": ioctl(0, 0x541C), "dirty TIOCSTI": ioctl(0, 0x1_00005412),
        "FICLONE": ioctl(os.open(clone, os.O_RDWR | os.O_CREAT), 0x40049409),
    },
    "writes": {
        path: open_for_writing(path)
        for path in ("/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname",
                     "/proc/sys/vm/drop_caches", "/proc/sys/user/max_inotify_instances", "/proc/1/oom_score_adj",
                     "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/fs/cgroup/cgroup.procs", "/proc/1/mem")
    },
    "reads": {
        path: read_some(path)
        for path in ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/kmsg", "/proc/1/environ",
                     "/proc/1/maps", "/proc/1/fd", "/proc/1/root", "/dev/kmsg", "/dev/mem", "/dev/kvm",
                     "/dev/fuse", "/dev/vsock", "/dev/btrfs-control", "/dev/loop-control", "/dev/loop0",
                     "/sys/fs/btrfs", "/sys/fs/cgroup", "/sys/firmware", "/sys/kernel/debug", "/sys",
                     "/proc/scsi", "/proc/acpi", "/var/run/docker.sock")
    },
    "chroot": in_child(lambda: attempt(lambda: os.chroot("/usr"))),
    "kill init": in_child(lambda: call(62, 1, 9)),
    "sync": attempt(lambda: os.fsync(root)),
    "inotify": in_child(inotify_instances),
    "environ": dict(os.environ),
    "status": dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line),
    "uid_map": open("/proc/self/uid_map").read().split(),
    "interfaces": os.listdir("/proc/sys/net/ipv4/conf"),
    "mounts": open("/proc/self/mountinfo").read(),
    "pids": sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()),
}  # fmt: skip
print(json.dumps(tell))
