"""A Slurm cluster of two nodes on this machine, for one command: it is started, the command run, the cluster stopped.

    python tests/fleet/cluster.py torchmark fleet run null --folder /tmp/fleet

Needs root and Debian's slurmctld, slurmd, slurm-client and munge. Everything it writes is in a folder of its own, every
port is a free one on the loopback interface, and every daemon is a child that is ended by its process id.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "sinfo")
PARTITION = "bench"
PATIENCE_S = 120.0

# Slurm knows nodes by name; on one host they differ in nothing but their port. KillWait is the time between SIGTERM
# and SIGKILL of a job that is ended.
CONFIGURATION = """\
ClusterName=trial
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobcomp.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=5
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
NodeName=node0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=4000 Feature=trial
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=4000 Feature=trial
PartitionName={partition} Nodes=node0,node1 Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def obstacle() -> str | None:
    """Why no cluster can be started here, if so."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        return f"Slurm is not here: no {', '.join(missing)} (Debian: slurmctld slurmd slurm-client munge)"
    return None if os.geteuid() == 0 else "only root can start Slurm's daemons"


@contextlib.contextmanager
def cluster(hidden: str | None = None) -> Iterator[dict[str, str]]:
    """The environment in which commands of Slurm mean this cluster; node1 sees nothing of the folder `hidden`."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: a socket's path has 108 bytes at most
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": _path()}
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        _configure(folder)
        for command in _commands(folder, hidden):
            with (folder / "daemons.log").open("ab") as log:
                daemons.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder))
            if command[0] == "munged":
                _wait_for((folder / "munge.socket").exists, folder)
        wait_until_idle(environment)
        yield environment
    finally:
        if len(daemons) > 1:  # jobs first, while there are daemons to end them
            with contextlib.suppress(RuntimeError):
                wait_until_idle(environment)
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(folder, ignore_errors=True)


def wait_until_idle(environment: dict[str, str]) -> None:
    """End all jobs, take drained nodes back, and wait until both nodes are free."""
    subprocess.run(["scancel", "--user", "root"], env=environment, capture_output=True, check=False)
    for node in ("node0", "node1"):  # an error if it is in order already
        command = ["scontrol", "update", f"nodename={node}", "state=resume"]
        subprocess.run(command, env=environment, capture_output=True, check=False)
    _wait_for(lambda: _is_idle(environment), Path(environment["SLURM_CONF"]).parent)


def _path() -> str:
    """Daemons are where only root looks for them."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def _configure(folder: Path) -> None:
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(1024))
    host = socket.gethostname().partition(".")[0]
    text = CONFIGURATION.format(folder=folder, host=host, ports=_free_ports(3), partition=PARTITION)
    (folder / "slurm.conf").write_text(text)
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
    (folder / "state").mkdir()


def _free_ports(count: int) -> list[int]:
    """Below the range that the system assigns from: no other program takes them before the daemons do."""
    found: list[int] = []
    while len(found) < count:
        port = 20_000 + secrets.randbelow(12_000)
        with contextlib.suppress(OSError), socket.socket() as each:
            each.bind(("127.0.0.1", port))
            found += [port] if port not in found else []
    return found


def _commands(folder: Path, hidden: str | None) -> list[list[str]]:
    """All in the foreground, so that they stay children of this process."""
    files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid"}
    files |= {"log-file": "munge.log", "seed-file": "munge.seed"}
    apart = ["unshare", "--mount", "bash", "-c", 'mount -t tmpfs none "$0" && exec "$@"', hidden] if hidden else []
    return [
        ["munged", "--force", "--foreground", *(f"--{name}={folder / file}" for name, file in files.items())],
        ["slurmctld", "-D", "-f", str(folder / "slurm.conf")],
        ["slurmd", "-D", "-N", "node0", "-f", str(folder / "slurm.conf")],
        [*apart, "slurmd", "-D", "-N", "node1", "-f", str(folder / "slurm.conf")],
    ]


def _is_idle(environment: dict[str, str]) -> bool:
    options = {"env": environment, "capture_output": True, "text": True, "check": False}
    nodes = subprocess.run(["sinfo", "-h", "-N", "-o", "%t"], **options).stdout.split()
    return nodes == ["idle", "idle"] and not subprocess.run(["squeue", "-h"], **options).stdout


def _wait_for(true: object, folder: Path) -> None:
    assert callable(true)
    end = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > end:
            logs = [path.read_text(errors="replace")[-1500:] for path in sorted(folder.glob("*.log"))]
            raise RuntimeError("Slurm did not come up:\n" + "\n".join(logs))
        time.sleep(0.1)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of the folder."""
    with (folder / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def serve(place: Path, hidden: str) -> int:
    """Run a cluster as long as a process lives that has left a file PID.user in this folder."""
    with cluster(hidden) as environment:
        (place / "new").write_text(json.dumps(environment))
        (place / "new").rename(place / "environment")
        while True:
            time.sleep(0.2)
            with locked(place):
                if not any(Path("/proc", path.stem).exists() for path in place.glob("*.user")):
                    (place / "environment").unlink()
                    return 0


def main(command: Sequence[str]) -> int:
    problem = obstacle() or (None if command else "name a command to run")
    if problem:
        print(f"cluster.py: {problem}", file=sys.stderr)
        return 1
    if command[0] == "--serve":
        return serve(Path(command[1]), command[2])
    with cluster() as environment:
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
