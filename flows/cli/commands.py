"""What each subcommand of `evergreen` reads and does. Heavy modules are imported by the command that needs them."""

import argparse
import json
import logging
from typing import TYPE_CHECKING

from flows.cli.arguments import add_common, add_store, log_to, prepared_home
from flows.cli.main import Command
from flows.cli.model_commands import predict, predict_arguments, rollback, rollback_arguments
from flows.cli.output import say
from training.errors import EXIT_OK, EXIT_RESOURCE

if TYPE_CHECKING:
    from training.records import Release

log = logging.getLogger("evergreen.command")


def _settings(parser: argparse.ArgumentParser) -> None:
    from flows.cli.help import settings_help

    parser.add_argument(
        "recipe", help="a recipe's name (see `evergreen recipes`) or the path of a recipe file"
    )
    parser.add_argument(
        "--set",
        dest="assignments",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="override a setting",
    )
    parser.add_argument("--force", action="store_true", help="train anew even if nothing changed")
    parser.epilog = settings_help()
    add_common(parser)


def _retrain(options: argparse.Namespace) -> int:
    from flows.cli.summary import print_release
    from flows.local.api import retrain
    from training.settings.overrides import parse_assignments

    log_to(options, options.quiet)
    release = retrain(options.recipe, parse_assignments(options.assignments), force=options.force)
    print_release(release)
    if options.json:
        say(json.dumps(_as_json(release)))
    return EXIT_OK


def _as_json(release: "Release") -> dict[str, object]:
    return {
        "run_key": release.run_key,
        "dataset_fingerprint": release.dataset_fingerprint,
        "weights_digest": release.weights_digest,
        "model": release.model,
        "version": release.version,
        "alias": release.alias,
        "verdict": "promoted" if release.alias == "champion" else "kept",
        "metrics": release.metrics,
        "reused": release.reused,
        "seconds": round(release.seconds, 2),
        "report": release.report,
    }


def _plan(options: argparse.Namespace) -> int:
    from flows.cli.summary import print_preview
    from flows.local.api import plan
    from training.settings.overrides import parse_assignments

    log_to(options, quiet=True)
    made = plan(options.recipe, parse_assignments(options.assignments), force=options.force)
    print_preview(made)
    if options.json:
        say(made.model_dump_json())
    return EXIT_OK


def _recipes(options: argparse.Namespace) -> int:
    from flows.cli.summary import print_recipes
    from training.recipe import BUILT_IN, load

    listed = [load(name)[0] for name in BUILT_IN]
    print_recipes(listed)
    if options.json:
        say(json.dumps([{"name": recipe.name, "summary": recipe.summary} for recipe in listed]))
    return EXIT_OK


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--deep", action="store_true", help="also start Ray, look for GPUs and open the store (half a minute)"
    )
    add_store(parser)
    add_common(parser)


def _doctor(options: argparse.Namespace) -> int:
    from flows.cli.doctor import checks
    from flows.cli.summary import print_checks
    from flows.local.environment import prepare
    from training.storage.paths import home

    place = home()
    prepare(place)
    found = list(checks(place, options.deep, options.tracking_uri))
    print_checks(found)
    if options.json:
        say(json.dumps([check.model_dump() for check in found]))
    return EXIT_RESOURCE if any(check.ok is False for check in found) else EXIT_OK


def _ui_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=5000, help="port on this machine (default: 5000)")


def _ui(options: argparse.Namespace) -> int:
    from flows.cli.ui import serve
    from training.storage.paths import home

    serve(home(), options.port)


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        metavar="RUN",
        help="a run's folder, its run key or the beginning of it, or a recipe (its newest run)",
    )
    parser.add_argument("--against", metavar="RUN", help="an undisturbed run that must have the same weights")
    parser.add_argument(
        "--recovery-bound", type=float, metavar="SECONDS", help="longest time to go on after a failure"
    )
    parser.epilog = (
        "exit status: 0 when no invariant is broken, 3 when one is; what can't be told breaks none"
    )
    add_common(parser)


def _verify(options: argparse.Namespace) -> int:
    from flows.cli.verify import exit_status, locate, print_findings, summary
    from flows.local.environment import log_to_terminal, prepare

    run, place = locate(options.run)
    prepare(place)
    log_to_terminal(options.verbose, quiet=True)
    against = locate(options.against)[0] if options.against else None
    from tasks.verify import verify

    findings = verify(run, place, against, options.recovery_bound)
    print_findings(run, findings)
    if options.json:
        listed = [one.model_dump() for one in findings]
        say(json.dumps({"run": str(run.root), "summary": summary(findings), "findings": listed}))
    return exit_status(findings)


def _gc_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be removed, and remove nothing"
    )
    parser.add_argument(
        "--keep", type=int, default=5, metavar="N", help="finished runs to keep of each recipe (default: 5)"
    )
    parser.add_argument(
        "--versions", action="store_true", help="also delete removed runs and their versions from MLflow"
    )
    parser.epilog = (
        "Versions that any alias points to, unfinished runs of the last 30 days, and what kept runs are made of stay.\n"
        "What was removed is made again, bit for bit, by the command that made it. Sessions of Ray and temporary\n"
        "folders that killed runs of this user left outside of the home go as well, and their locks in the registry."
    )
    add_common(parser)


def _gc(options: argparse.Namespace) -> int:
    from flows.cli.summary import print_collection
    from tasks.cleanup.retention import collect

    place = prepared_home(options, options.quiet, read_only=options.dry_run)
    found = collect(place, options.keep, options.versions, options.dry_run)
    print_collection(found, place, options.dry_run)
    if options.json:
        say(found.model_dump_json())
    return EXIT_OK


COMMANDS: dict[str, Command] = {
    "retrain": Command("bring a model up to date: train, compare, promote or keep", _settings, _retrain),
    "plan": Command("say what `retrain` would do, and what it would find done", _settings, _plan),
    "recipes": Command("list the recipes that come with Evergreen", add_common, _recipes),
    "predict": Command("score images with a registered model", predict_arguments, predict),
    "rollback": Command("return to the champion before the present one", rollback_arguments, rollback),
    "doctor": Command("check the installation and say how to mend it", _doctor_arguments, _doctor),
    "verify": Command("check a run's invariants anew from its bytes", _verify_arguments, _verify),
    "gc": Command("remove runs, datasets and checkpoints that nothing needs any more", _gc_arguments, _gc),
    "ui": Command("open MLflow on this home's store", _ui_arguments, _ui),
}
