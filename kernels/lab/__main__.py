"""The lab's commands: `python -m kernels.lab bench norms`, `… count layernorm`, `… gpu`.

A request that cannot be served ends with one sentence on stderr and exit code 2; a run in which
something failed ends with exit code 1.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from kernels import registry
from kernels.lab.selection import RefusalError, load_ops


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Write one sentence instead of the usage."""
        print(f"{self.prog}: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


def _bench(arguments: argparse.Namespace) -> int:
    from kernels.lab.measuring import bench

    return bench.run(
        bench.Options(
            suite=arguments.suite,
            variants=arguments.variants,
            shapes=tuple(arguments.shape),
            dtypes=tuple(arguments.dtype),
            options=tuple(arguments.options),
            pass_=arguments.pass_,
            out=arguments.out,
            run_id=arguments.run_id,
            seconds=arguments.seconds,
            profile=not arguments.no_profile,
            profile_seconds=arguments.profile_seconds,
            resume=arguments.resume,
        )
    )


def _profile(arguments: argparse.Namespace) -> int:
    from kernels.lab.measuring.cell_bench import say
    from kernels.lab.profiling import profile

    return profile.run(
        arguments.suite, arguments.cells, arguments.out, arguments.profile_seconds, say
    )


def _host(arguments: argparse.Namespace) -> int:
    from kernels.lab.measuring import host_cost

    return host_cost.run(arguments.out, arguments.seconds)


def _memory(arguments: argparse.Namespace) -> int:
    from kernels.lab.measuring import step_memory

    return step_memory.run(arguments.out)


def _models(arguments: argparse.Namespace) -> int:
    from kernels.lab.measuring.cell_bench import say
    from kernels.lab.profiling import launched

    return launched.run(arguments.out, say)


def _generated(arguments: argparse.Namespace) -> int:
    from kernels.lab.measuring.cell_bench import say
    from kernels.lab.profiling import generated

    return generated.run(arguments.out, say)


def _gpu(arguments: argparse.Namespace) -> int:
    from kernels.lab.measuring import gpu_run

    if arguments.no_tests and arguments.only_tests:
        raise RefusalError("--no-tests and --only-tests leave nothing to do; name one of them")
    chosen = gpu_run.Chosen(
        suites=None if arguments.only_tests else arguments.suites,
        seconds=arguments.seconds,
        tests=not arguments.no_tests,
        owed=arguments.owed,
        processes=arguments.processes,
    )
    return gpu_run.run(arguments.out, chosen)


def _report(arguments: argparse.Namespace) -> int:
    from kernels.lab.records import lab_report

    return lab_report.run(arguments.suite, arguments.gpu, arguments.out)


def _proofs(arguments: argparse.Namespace) -> int:
    from kernels.lab.records import adopt, proofs, sources
    from kernels.paths import DATA_DIR, ROOT

    if arguments.action == "adopt":
        if arguments.suite is None:
            raise RefusalError(f"adopt takes a suite, one of: {', '.join(registry.SUITES)}")
        return adopt.run(arguments.suite)
    tree = sources.of_folder(ROOT)
    if arguments.action == "owe":
        if not arguments.suite:
            raise RefusalError('owe takes the reason: proofs owe "no GPU was at hand"')
        print("\n".join(proofs.owe(tree, DATA_DIR, arguments.suite)) or "nothing is owed")
        return 0
    print(proofs.table(tree, DATA_DIR))
    found = proofs.problems(tree, DATA_DIR)
    print("\n".join(["", *found]) if found else "\nevery test marked proves is proved")
    return 1 if found else 0


def _tune(arguments: argparse.Namespace) -> int:
    from kernels.lab.measuring import tune

    return tune.run(
        arguments.op, arguments.shape, arguments.dtype, arguments.seconds, arguments.pass_
    )


def _count(arguments: argparse.Namespace) -> int:
    load_ops()
    try:
        op = registry.get(arguments.op)
        op.variant(arguments.variant)
        dtype = registry.parse_dtype(arguments.dtype)
        text = arguments.shape or registry.shape_name(op.shapes[0])
        shape = registry.parse_shape(text)
        if 0 in shape or len(shape) != len(op.shapes[0]):
            raise RefusalError(
                f"shape {text!r} does not fit {op.name!r}; it takes sizes above 0 as in: "
                f"{registry.shape_name(op.shapes[0])}"
            )
        from kernels.lab.counting import op_ledger

        options = registry.parse_options(arguments.options)
        case = registry.Case(shape, dtype, options)
        ledger = op_ledger.count_case(op, arguments.variant, case, arguments.pass_)
    except (KeyError, ValueError) as error:
        raise RefusalError(str(error.args[0])) from error
    cost = op.pass_(arguments.pass_).cost(case)
    print(ledger.table())
    print(
        f"{op.name} {arguments.variant} {case.name} {arguments.pass_}: "
        f"{ledger.bytes_unique:,} unique bytes, {ledger.bytes_unique / cost.bytes_ideal:.2f} times "
        f"the ideal {cost.bytes_ideal:,}; launches: {ledger.launches}, "
        f"PyTorch operators: {ledger.aten_ops}, counted: {ledger.method}"
    )
    return 0


def _aot(arguments: argparse.Namespace) -> int:
    from kernels.lab.counting import aot

    return aot.run(arguments.op, arguments.keep)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m kernels.lab", description="Measure and count kernels.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    bench = commands.add_parser("bench", help="time, check and count a suite on this GPU")
    bench.add_argument("suite", help=f"one of: {', '.join(registry.SUITES)}")
    bench.add_argument("--variants", default="all", help="all, or names joined by commas")
    bench.add_argument("--shape", action="append", default=[], help="4096x4096; may be repeated")
    bench.add_argument("--dtype", action="append", default=[], help="bf16, bfloat16, …; repeatable")
    bench.add_argument("--pass", dest="pass_", default="all", help="fwd, bwd, train or all (all)")
    bench.add_argument(
        "--options", action="append", default=[], help='causal, or "" for none; may be repeated'
    )
    bench.add_argument("--out", type=Path, help="write <out>/<gpu>/<suite>.csv (book/data)")
    bench.add_argument("--run-id", help="names the folder in _build/bench of a part of a suite")
    bench.add_argument("--seconds", type=float, default=0.5, help="a variant's budget a cell (0.5)")
    bench.add_argument(
        "--resume", action="store_true", help="go on with the cells of a cut run (--out, --run-id)"
    )
    bench.add_argument("--no-profile", action="store_true", help="leave DRAM bytes unmeasured")
    bench.add_argument("--profile-seconds", type=float, default=150.0, help="ncu's budget (150)")
    bench.set_defaults(run=_bench)

    profile = commands.add_parser("profile", help="add DRAM bytes (ncu) to a recorded suite")
    profile.add_argument("suite", help=f"one of: {', '.join(registry.SUITES)}")
    profile.add_argument(
        "--cells", nargs="+", default=[], help="op:variant:shape:dtype[:options][:bwd], * for any"
    )
    profile.add_argument("--out", type=Path, help="where <gpu>/<suite>.csv lies (book/data)")
    profile.add_argument("--profile-seconds", type=float, default=150.0, help="ncu's budget (150)")
    profile.set_defaults(run=_profile)

    host = commands.add_parser("host", help="what a call from Python costs, and its parts")
    host.add_argument("--out", type=Path, help="write <out>/<gpu>/host.json (book/data)")
    host.add_argument("--seconds", type=float, default=0.5, help="a call's budget (0.5)")
    host.set_defaults(run=_host)

    memory = commands.add_parser("memory", help="what a training step of the encoder layer needs")
    memory.add_argument("--out", type=Path, help="write <out>/<gpu>/memory.json (book/data)")
    memory.set_defaults(run=_memory)

    models = commands.add_parser("models", help="record what three models launch on this GPU")
    models.add_argument("--out", type=Path, help="write <out>/<gpu>/models.json (book/data)")
    models.set_defaults(run=_models)

    written = commands.add_parser("generated", help="record what TorchInductor writes here")
    written.add_argument("--out", type=Path, help="write <out>/<gpu>/generated.json (book/data)")
    written.set_defaults(run=_generated)

    gpu = commands.add_parser("gpu", help="GPU tests and all that is recorded, in one archive")
    gpu.add_argument("--out", type=Path, help="folder of the files and the archive (_build/gpu)")
    gpu.add_argument("--suites", nargs="+", default=[], help="these suites only")
    gpu.add_argument("--seconds", type=float, default=0.5, help="a variant's budget a cell (0.5)")
    gpu.add_argument("--no-tests", action="store_true", help="measure only")
    gpu.add_argument("--only-tests", action="store_true", help="measure nothing")
    gpu.add_argument("--owed", action="store_true", help="of the tests, those whose proof is owed")
    gpu.add_argument("--processes", type=int, help="files of tests at once (half the cores, to 8)")
    gpu.set_defaults(run=_gpu)

    report = commands.add_parser("report", help="a recorded suite as a page: decisions, evidence")
    report.add_argument("suite", help=f"one of: {', '.join(registry.SUITES)}")
    report.add_argument("--gpu", help="one card's short name, e.g. h100-sxm (all)")
    report.add_argument("--out", type=Path, help="write the page here instead of printing it")
    report.set_defaults(run=_report)

    proofs = commands.add_parser("proofs", help="what only a GPU can prove: where, when, if valid")
    proofs.add_argument("action", nargs="?", choices=["adopt", "owe"], help="hashes for older data")
    proofs.add_argument("suite", nargs="?", help="the suite that adopts; why a proof is owed")
    proofs.set_defaults(run=_proofs)

    tune = commands.add_parser("tune", help="time the configurations of an operation's kernel")
    tune.add_argument("op", help="an operation, e.g. layernorm")
    tune.add_argument("--shape", action="append", default=[], help="4096x4096; may be repeated")
    tune.add_argument("--dtype", action="append", default=[], help="bf16, bfloat16, …; repeatable")
    tune.add_argument("--pass", dest="pass_", default="fwd", help="fwd or bwd (fwd)")
    tune.add_argument("--seconds", type=float, default=0.1, help="a configuration's budget (0.1)")
    tune.set_defaults(run=_tune)

    count = commands.add_parser("count", help="count a variant's bytes; needs no GPU")
    count.add_argument("op", help="an operation, e.g. layernorm")
    count.add_argument("--variant", default="fused", help="one of its variants (fused)")
    count.add_argument("--shape", help="4096x4096 (the operation's first)")
    count.add_argument("--pass", dest="pass_", default="fwd", help="fwd, bwd or train (fwd)")
    count.add_argument("--options", default="", help="the case's options, as: causal window=1024")
    count.add_argument("--dtype", default="bf16", help="fp16, bf16 or fp32 (bf16)")
    count.set_defaults(run=_count)

    aot = commands.add_parser("aot", help="compile every launch for other cards; needs no GPU")
    aot.add_argument("op", nargs="?", help="an operation, e.g. layernorm (all)")
    aot.add_argument("--keep", action="store_true", help="write down which are sound")
    aot.set_defaults(run=_aot)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except RefusalError as refusal:
        print(f"python -m kernels.lab {arguments.command}: {refusal}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
