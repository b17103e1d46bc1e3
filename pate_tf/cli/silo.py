"""One silo: it keeps its data, answers public queries by its policy, and keeps its own account.

    pate-silo init --name=clinic --silo_dir=clinic --coordinator=HOST:PORT --epsilon_budget=20
    pate-silo serve --silo_dir=clinic --dataset=digits --data=records.npz

`init` writes policy.toml, which a privacy officer reads, changes and signs off. `serve` dials the
coordinator and works as long as it runs; it may be killed and started again at any time, and needs
no open port. What leaves is what the policy allows, paid before it is drawn. A silo has one account
(SILO_DIR/sensitive): never restore it from a copy.

    pate-silo certificates --demo --names=clinic,school --certificates=certificates

makes a certificate authority for trying it out. Real ones come from an authority of your own.
"""

import pathlib
import sys

from absl import flags

from pate_tf.cli import command_line

FLAGS = flags.FLAGS
FLAG_OF_ARGUMENT = {
    "folder": "silo_dir",
    "silo": "name",
    "records": "data",
    "most_epsilon_per_query": "most_epsilon",
    "allowed": "mechanisms",
    "acknowledge_reset": "reset_account_i_understand",
}


def define_common() -> None:
    """Defines what more than one of the commands has."""
    flags.DEFINE_string("silo_dir", None, "Folder of the silo: policy, account, teacher.")
    flags.DEFINE_string("coordinator", None, "Address of the coordinator, HOST:PORT.")


def define_certificates_folder() -> None:
    """Defines where certificates lie."""
    flags.DEFINE_string(
        "certificates", "certificates", "Folder with authority.pem, and NAME.pem and NAME.key."
    )


def define_init() -> None:
    """Defines the flags of `pate-silo init`."""
    define_common()
    flags.DEFINE_string("name", None, "The silo's name, as on the roster and in its certificate.")
    flags.DEFINE_float("epsilon_budget", None, "For everything that the silo ever answers.")
    flags.DEFINE_float("delta", 1e-6, "Delta that the budget holds at.")
    flags.DEFINE_float("most_epsilon", 1.0, "Most epsilon for one randomised answer.")
    flags.DEFINE_integer("queries_per_day", 10_000, "Queries paid for in any 24 hours.")
    flags.DEFINE_list(
        "mechanisms", "randomised_response", "Of randomised_response, secure_histogram."
    )
    flags.DEFINE_float("least_sigma", 40.0, "Least noise of secure_histogram, in votes.")


def define_serve() -> None:
    """Defines the flags of `pate-silo serve`."""
    define_common()
    define_certificates_folder()
    flags.DEFINE_string("dataset", "digits", "Data set, as the coordinator has it.")
    flags.DEFINE_string("data", None, "A .npz file of inputs and labels to train a teacher on.")
    flags.DEFINE_string("data_dir", None, "Where the data set lies; default: TFDS' own folder.")
    flags.DEFINE_string(
        "model", "random_forest", "What is trained, as by train_teachers.py, or module:function."
    )
    flags.DEFINE_string(
        "teacher",
        None,
        "A trained teacher: a SavedModel, a .keras or .skops file, or module:function that takes "
        "the Dataset and returns one.",
    )
    flags.DEFINE_string("parties", None, "The list of parties, for secure aggregation.")
    flags.DEFINE_string("coordinator_name", "coordinator", "Name in the coordinator's certificate.")
    flags.DEFINE_float("epsilon_budget", None, "Tighter than the policy's; default: the policy's.")
    flags.DEFINE_integer("seed", 0, "Fixes the teacher's training.")
    flags.DEFINE_boolean(
        "reset_account_i_understand",
        False,
        "Go on although an earlier account of this silo, or later rows of it, are gone; the "
        "account tells so for ever, and what is known of what was spent is charged again.",
    )


def define_certificates() -> None:
    """Defines the flags of `pate-silo certificates`."""
    define_certificates_folder()
    flags.DEFINE_boolean("demo", False, "Must be given: the authority is one to try out alone.")
    flags.DEFINE_list("names", None, "Names of silos and parties, separated by commas.")


def init() -> None:
    """Makes a silo's folder."""
    from pate_tf.api import silo
    from pate_tf.silos.policy import Policy

    for name in ("name", "silo_dir", "coordinator", "epsilon_budget"):
        if FLAGS[name].value is None:
            raise ValueError(f"{name}: expected it for a new silo, got none")
    path = silo.initialise(
        pathlib.Path(FLAGS.silo_dir),
        Policy(
            silo=FLAGS.name,
            coordinator=FLAGS.coordinator,
            epsilon_budget=FLAGS.epsilon_budget,
            delta=FLAGS.delta,
            most_epsilon_per_query=FLAGS.most_epsilon,
            queries_per_day=FLAGS.queries_per_day,
            allowed=tuple(FLAGS.mechanisms),
            least_sigma=FLAGS.least_sigma,
        ),
    )
    print(f"read and sign off {path}; then: pate-silo serve --silo_dir={FLAGS.silo_dir}")


def serve() -> None:
    """Works for a coordinator."""
    from pate_tf.api import silo, silo_teacher

    if FLAGS.silo_dir is None:
        raise ValueError("silo_dir: expected the folder of the silo, got none")
    silo.serve(
        silo.SiloRun(
            folder=pathlib.Path(FLAGS.silo_dir),
            certificates=pathlib.Path(FLAGS.certificates),
            teacher=silo_teacher.TeacherRun(
                dataset=FLAGS.dataset,
                data_dir=command_line.path(FLAGS.data_dir),
                teacher=FLAGS.teacher,
                records=command_line.path(FLAGS.data),
                model=FLAGS.model,
                seed=FLAGS.seed,
            ),
            parties=command_line.path(FLAGS.parties),
            coordinator=FLAGS.coordinator,
            coordinator_name=FLAGS.coordinator_name,
            epsilon_budget=FLAGS.epsilon_budget,
            acknowledge_reset=FLAGS.reset_account_i_understand,
        ),
        on_event=lambda event: print(event, flush=True),
    )


def certificates() -> None:
    """Makes an authority for trying silos out."""
    from pate_tf.net.certificates import write_demo_certificates

    if not FLAGS.demo:
        raise ValueError("demo: expected --demo, as these certificates are to try out alone")
    if not FLAGS.names:
        raise ValueError("names: expected the silos and parties, got none")
    found = write_demo_certificates(pathlib.Path(FLAGS.certificates), FLAGS.names)
    print(f"{len(found)} certificates in {FLAGS.certificates}, for 30 days, to try out alone")


COMMANDS = {
    "init": (init, define_init),
    "serve": (serve, define_serve),
    "certificates": (certificates, define_certificates),
}


def run() -> None:
    """Runs the command that the first argument names."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in COMMANDS:
        is_help = name.lstrip("-") in ("help", "h", "helpfull", "helpshort")
        print(
            __doc__ if is_help else f"error: expected one of {', '.join(COMMANDS)}, got {name!r}",
            file=sys.stdout if is_help else sys.stderr,
        )
        raise SystemExit(0 if is_help else command_line.FLAG_ERROR)
    del sys.argv[1]
    main, define_flags = COMMANDS[name]
    command_line.run(command_line.guarded(main, FLAGS, FLAG_OF_ARGUMENT), define_flags, __doc__)


if __name__ == "__main__":
    run()
