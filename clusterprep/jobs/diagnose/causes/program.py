"""The cause of programs that end by themselves: exceptions, assertions, crashes, arguments."""

from __future__ import annotations

from clusterprep.jobs.diagnose.crashes import NEEDLES
from clusterprep.jobs.diagnose.model import Cause, Sign, Weight
from clusterprep.remedies import sentence

PROGRAM = Cause(
    "program",
    "fatal",
    title="The program ended by itself",
    message=(
        "A process of the job ended by an error of its own: an exception that nothing caught, a "
        "failed assertion, a crash or wrong arguments. What other ranks report after it mostly "
        "follows from it."
    ),
    doubt=(
        "A process of the job may have ended by an error of its own. Whether it was the first "
        "failure is not certain."
    ),
    looks=(
        "A traceback that is followed by torchrun's ChildFailedError or by the end of the log, "
        "«Segmentation fault», exit code -11, «Assertion … failed», «error: unrecognized "
        "arguments»."
    ),
    unlike=(
        "Errors of NCCL, of gloo and of stores, and connections that a peer closed, follow from "
        "another rank or have a cause of their own. An exception after which the program goes on "
        "is no failure."
    ),
    remedy=sentence(
        "Read the traceback above the quoted line: the program, its data, its packages or the file "
        "system that it names has to be mended"
    ),
    check=None,
    needles=NEEDLES,
    signs=(
        Sign(
            "first failure: rank",
            r"first failure: rank (?P<number>\d+) on (?P<node>\S+) was killed by "
            r"(?P<what>SIG(?:SEGV|FPE|ILL|SYS))",
            "clusterprep launch: first failure: rank 2 on n2 was killed by SIGSEGV",
            culprit="rank {number}",
            note="rank {number} on {node} was the first to fail, by {what}",
        ),
        Sign(
            "first failure: rank",
            # Exit code 1 is also that of a rank that lost a peer.
            r"first failure: rank (?P<number>\d+) on (?P<node>\S+) ended with exit code "
            r"(?P<what>[2-9]|\d\d+)",
            "clusterprep launch: first failure: rank 2 on n2 ended with exit code 3",
            Weight.LIKELY,
            culprit="rank {number}",
            note="rank {number} on {node} was the first to fail, with exit code {what}",
        ),
        Sign(
            "py_callstack",
            r'"message": "(?P<what>[\w.]+[^"]{0,160})"[^}]{0,40}"py_callstack"',
            '{"message": {"message": "ValueError: no data", "extraInfo": {"py_callstack": "T"}}}',
            culprit="rank {rank}",
            note="torchrun's error file says: {what}",
        ),
        Sign(
            "fatal python error",
            r"Fatal Python error: (?P<what>(?!Aborted|Bus error|init)\S.*)",
            "[rank1]: Fatal Python error: Segmentation fault",
            culprit="rank {rank}",
            note="Python said: {what}",
        ),
        Sign(
            "segmentation fault",
            r"Segmentation fault",
            "run.sh: line 12:  4711 Segmentation fault      (core dumped) python train.py",
            culprit="rank {rank}|host {host}",
            note="a process ended by SIGSEGV",
        ),
        Sign(
            "sigsegv",
            # Ray lists signals among what may have ended an actor, and settings hold lists of them.
            r"(?:with signal|signal \d+ \(|<Signals\.|\*\*\*|caught|received|killed by) ?SIGSEGV",
            "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal "
            "SIGSEGV",
            culprit="rank {rank}",
            note="a process ended by SIGSEGV",
        ),
        Sign(
            "segfault",
            r"\w\[\d+\]: segfault at |! Segfault encountered !",
            "[25357.758221] python[4711]: segfault at 8 ip 00007f01 sp 00007ffd error 4 in libx.so",
            culprit="host {host}",
            note="the kernel tells of a segmentation fault",
        ),
        Sign(
            "floating point exception",
            r"Floating point exception",
            "srun: error: gpu-07: task 3: Floating point exception (core dumped)",
            culprit="rank {rank}|host {host}",
            note="a process ended by SIGFPE",
        ),
        Sign(
            "illegal instruction",
            r"(?<!an )Illegal instruction(?! was)",
            "run.sh: line 3:  4711 Illegal instruction     (core dumped) python train.py",
            culprit="rank {rank}",
            note="a process ended by SIGILL: it was built for another processor",
        ),
        Sign(
            "return code = -",
            r"exits? with return code = -(?:4|8|11)\b",
            "[INFO] [launch.py:347:main] Process 4711 exits with return code = -11",
            note="a process ended by a signal of its own",
        ),
        Sign(
            "code: 139",
            r"exit code: (?:132|136|139)\b",
            "Last State: Terminated; Reason: Error; Exit Code: 139",
            note="a process ended by a signal of its own",
        ),
        Sign(
            "code 139",
            r"exit(?:ed)? (?:with )?(?:exit )?code (?:132|136|139)\b",
            "srun: error: gpu-07: task 3: Exited with exit code 139",
            note="a process ended by a signal of its own",
        ),
        Sign(
            "exit status",
            r"exit status:? *(?:132|136|139)\b",
            "Process group worker ended with exit status 139",
            note="a process ended by a signal of its own",
        ),
        Sign(
            # torch/multiprocessing/spawn.py, ProcessExitedException; 1 is also that of a lost peer.
            "terminated with exit code",
            r"process (?P<number>\d+) terminated with exit code (?P<what>[2-9]|[1-9]\d|1[01]\d)\b",
            "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with exit "
            "code 7",
            Weight.LIKELY,
            culprit="process {number}",
            note="process {number} ended with exit code {what}",
        ),
        Sign(
            "exited on signal",
            r"process rank (?P<number>\d+) with PID \d+ on node \S+ exited on signal (?:4|8|11)\b",
            "mpirun noticed that process rank 3 with PID 77 on node n1 exited on signal 11 "
            "(Segmentation fault).",
            culprit="rank {number}",
        ),
        Sign(
            "killed by signal: ",
            r"killed by signal: (?:4|8|11)\b",
            "=   KILLED BY SIGNAL: 11 (Segmentation fault)",
        ),
        Sign(
            "device-side assert triggered",
            r"device-side assert triggered",
            "[rank3]: RuntimeError: CUDA error: device-side assert triggered",
            culprit="rank {rank}",
            note="an assertion failed on the GPU: as a rule an index or a label out of range",
        ),
        Sign(
            "assertion `",
            r"Assertion `(?P<what>[^`']+)[`'] failed",
            "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1290: block: [1,0,0], thread: [2,0,0] "
            "Assertion `srcIndex < srcSelectDimSize` failed.",
            note="the assertion is «{what}»",
        ),
        Sign(
            "free or corruption",
            r"double free or corruption",
            "double free or corruption (out)",
            note="glibc found the memory of a process damaged",
        ),
        Sign(
            "(): invalid ",
            r"(?:free|munmap_chunk|realloc|malloc)\(\): invalid "
            r"(?:pointer|next size|size|old size)",
            "free(): invalid next size (normal)",
            note="glibc found the memory of a process damaged",
        ),
        Sign(
            "smashing detected",
            r"\*\*\* stack smashing detected \*\*\*",
            "*** stack smashing detected ***: terminated",
            note="a native library wrote beyond its stack",
        ),
        Sign(
            "corrupted ",
            r"^malloc\(\): (?:\w+ ){0,3}corrupted |^corrupted (?:size vs|double-linked)",
            "corrupted size vs. prev_size",
            note="glibc found the memory of a process damaged",
        ),
        Sign(
            ": error: ",
            r"^[\w./ -]+: error: (?P<what>(?:unrecognized arguments|the following arguments are "
            r"required|argument \S+:|ambiguous option|one of the arguments|too few arguments).*)",
            "train.py: error: unrecognized arguments: --local-rank=0",
            note="the program does not take its arguments: {what}",
        ),
        Sign(
            "error: ",
            r"^Error: (?P<what>(?:No such (?:option|command)|Missing (?:option|argument)|Invalid "
            r"value for|Got unexpected extra argument).*)",
            "Error: No such option: --batch-size",
            note="the program does not take its arguments: {what}",
        ),
        Sign(
            "can't open file",
            r"python\S*: can't open file (?P<what>\S+): \[Errno",
            "/opt/env/bin/python: can't open file 'train.py': [Errno 2] No such file or directory",
            culprit="rank {rank}|host {host}",
            note="Python does not find the program {what}",
        ),
        Sign(
            "finding module specification for",
            r"Error while finding module specification for '?(?P<what>[\w.]+)",
            "/opt/env/bin/python: Error while finding module specification for 'torch.distribute."
            "launch' (ModuleNotFoundError: No module named 'torch.distribute')",
            culprit="rank {rank}|host {host}",
            note="Python does not find the program {what}",
        ),
        Sign(
            "no module named",
            r"python\S*: No module named (?P<what>\S+)",
            "/opt/env/bin/python: No module named trainer",
            culprit="rank {rank}|host {host}",
            note="Python does not find the program {what}",
        ),
        Sign(
            "execve(): ",
            r"srun: error: .*: tasks? .*execve\(\): |execve\(\): \S+: "
            r"(?:No such file|Permission denied)",
            "slurmstepd: error: execve(): train.sh: No such file or directory",
            culprit="host {host}",
            note="Slurm cannot start the program",
        ),
        Sign(
            "executable file not found",
            r"executable file not found in \$PATH",
            'exec: "torchrun": executable file not found in $PATH',
            note="the container has no such program",
        ),
        Sign(
            "command not found",
            r"(?:torchrun|python\d?|accelerate|deepspeed|mpirun|srun): command not found",
            "run.sh: line 4: torchrun: command not found",
            note="the shell does not find the program",
        ),
        Sign(
            "panicked at",
            r"thread '[^']*' (?:\(\d+\) )?panicked at ",
            "thread 'main' panicked at src/main.rs:4:5:",
            note="a part in Rust panicked",
        ),
        Sign(
            "terminate called after",
            r"terminate called after throwing an instance of "
            r"'(?P<what>(?!c10|gloo|nccl|at::|tensorpipe|torch|std::runtime_error)[^']+)'",
            "terminate called after throwing an instance of 'std::bad_alloc'",
            Weight.LIKELY,
            note="a native library raised {what}",
        ),
        Sign(
            "terminate called after",
            r"terminate called after throwing an instance of '(?P<what>std::runtime_error)'",
            "terminate called after throwing an instance of 'std::runtime_error'",
            # torch's watchdog throws it too, up to 2.0, whatever made a collective fail.
            Weight.SYMPTOM,
            note="a native library raised {what}",
        ),
        Sign(
            "must be run ",
            r"must be run (?:on|with) at least \d+ (?:nodes|ranks|processes)",
            "ERROR: this application must be run on at least 10 nodes",
            note="the program says so itself",
        ),
    ),
)
