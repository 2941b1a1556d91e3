"""A process that has imported what ranks need, and forks a rank for each request: no rank imports PyTorch anew.

Its arguments are the file number of a socket, and modules to import. A request is the rank's program, or -m and a
module, with its arguments, and its environment: JSON behind its length, beside which comes the file for the rank's
output. The answer is a line with the process. When a rank has ended comes a line with the process and waitpid's status.

A rank runs its program as the interpreter's main program, and ends as an interpreter does.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from pathlib import Path


def serve(requests: socket.socket):
    """Returns in each rank, with its request, and in the template with None when there are no more requests."""
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    while True:
        ready = select.select([requests, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            while ended := reaped():
                requests.sendall(b"%d %d\n" % ended)
        if requests in ready:
            length, files, _, _ = socket.recv_fds(requests, 8, 1)
            if not length:
                return None
            text = requests.recv(int.from_bytes(length, "little"), socket.MSG_WAITALL)
            if (rank := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for file in (woken, wake, requests.detach()):
                    os.close(file)
                os.dup2(files[0], 1)
                os.dup2(files[0], 2)
                os.close(files[0])
                return json.loads(text)
            os.close(files[0])
            requests.sendall(b"%d\n" % rank)


def reaped():
    """A rank that has ended, and how; None for none."""
    try:
        rank, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (rank, status) if rank else None


def main(file, *modules):
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else a rank's first collection copies what all share
    wanted = serve(socket.socket(fileno=int(file)))
    if wanted is None:
        return
    os.environ.clear()
    os.environ.update(wanted["environment"])
    sys.argv = wanted["program"]
    if sys.argv[0] == "-m":
        sys.path[0] = os.getcwd()
        runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
        return
    sys.path[0] = os.path.dirname(sys.argv[0])
    names = vars(sys.modules["__main__"])
    names["__file__"] = sys.argv[0]
    exec(compile(Path(sys.argv[0]).read_bytes(), sys.argv[0], "exec"), names)


if __name__ == "__main__":
    main(*sys.argv[1:])
