"""The flags of `pate-student`."""

from absl import flags

from pate_tf.cli import data_flags, mechanism_flags, plan_flags
from pate_tf.statement import words as statement_words


def define() -> None:
    """Defines them."""
    flags.DEFINE_string(
        "dataset",
        "digits",
        "Name of the data set: digits (embedded), mnist, svhn, cifar10, adult, diabetes, another "
        "name of TensorFlow Datasets, or module:function.",
    )
    data_flags.define(with_private=False)
    flags.DEFINE_integer("nb_teachers", 100, "Number of teachers of the ensemble.", lower_bound=1)
    flags.DEFINE_string(
        "teachers_dir",
        None,
        "Run folder of the teachers. Default: runs/DATASET-NB_TEACHERS in this folder.",
    )
    flags.DEFINE_string(
        "teachers",
        None,
        "Teachers from elsewhere instead: a folder of .keras files or SavedModels, or a .npy file "
        "of labels [num_teachers, num_queries] for the first queries of the pool. Their ledger "
        "lies in --teachers_dir, which must be given and always be the same.",
    )
    flags.DEFINE_string("train_dir", None, "Run folder of the student. Default: the teachers' one.")
    flags.DEFINE_string(
        "data_dir", None, "Folder with data prepared by TensorFlow Datasets. Default: TFDS' own."
    )
    flags.DEFINE_integer(
        "stdnt_share",
        None,
        "How many of the public samples, from the first, form the student's pool; the rest "
        "evaluates it. Default: the data set's own share.",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "queries",
        100,
        "How many of the pool are put to the teachers; the rest stays unlabelled. With "
        "--target_epsilon: planned unless it is given.",
        lower_bound=1,
    )
    flags.DEFINE_enum(
        "query_strategy",
        None,
        list(statement_words.QUERY_STRATEGIES),
        "Which of the pool are put to the teachers; true labels play no part. first: the first "
        "ones; random: drawn at random; diverse: one of each group of look-alikes, whose answers "
        "are spread to inputs that look the same; typical: the same for the denser ones of a "
        "fifth more groups, on which teachers agree most. Default: first; typical for a "
        "stability_gate. In rounds, from the noisy labels so far: uncertain: where a student of "
        "them is least sure; binary_experts: where one-against-all "
        "experts contradict each other; siamese: at random, but what matches a labelled input "
        "takes its label without a query.",
    )
    flags.DEFINE_integer(
        "query_rounds",
        None,
        "In how many rounds a strategy that learns from earlier answers asks. Default: 5.",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "query_seed",
        0,
        "Seed of random choices of queries and of what is trained between rounds. Another seed "
        "asks other queries, which are paid for.",
        lower_bound=0,
        upper_bound=2**31 - 1,
    )
    flags.DEFINE_integer(
        "query_neighbours",
        None,
        "With diverse and typical: how many inputs of the pool that look most like a query go with "
        "it; a teacher votes once, for the class that it names most often among them, so that "
        "teachers agree more. 0: each query alone. Default: up to 20 for a stability_gate on "
        "images, else 0.",
        lower_bound=0,
    )
    flags.DEFINE_string(
        "representation",
        None,
        "What diverse and typical take for likeness: contrastive or patches, learnt from the pool "
        "alone and kept in ~/.cache/pate_tf (or $PATE_TF_CACHE); raw; several of them joined by +; "
        "or module:function for a Keras model from raw inputs to features. Default: that of the "
        "teachers, if they have one; else contrastive for images, raw otherwise.",
    )
    mechanism_flags.define(
        default="laplace_noisy_max",
        help_text="How the noisy winner is drawn from the votes. A parameter that it does not have "
        "is refused.",
    )
    flags.DEFINE_float("delta", 1e-5, "Delta of the guarantee; fixed for an ensemble at first use.")
    flags.DEFINE_float(
        "target_epsilon",
        None,
        "What these labels may cost, as data-independent epsilon at --delta. Mechanism, noise and "
        "number of queries are then chosen from a plan that reads no votes; with --mechanism the "
        "noise and the number alone.",
    )
    plan_flags.define(needed="--target_epsilon")
    flags.DEFINE_float(
        "epsilon_budget",
        None,
        "The most that all labels of this ensemble may ever cost, as data-independent epsilon at "
        "--delta; fixed at first use. Default: no limit; everything is recorded all the same.",
    )
    flags.DEFINE_boolean(
        "new_budget_i_understand",
        False,
        "Replace the ensemble's budget by --epsilon_budget and --delta, both of which must be "
        "given. The ledger and every later statement say so for ever.",
    )
    flags.DEFINE_boolean(
        "reset_ledger_i_understand",
        False,
        "Go on although the ensemble's ledger, or rows of it, are gone. What is known of their "
        "cost is charged again. The ledger and every later statement say so for ever.",
    )
    flags.DEFINE_enum(
        "planned_release",
        None,
        ["sanitised", "smooth_sensitivity"],
        "How analysis.py will release the data-dependent cost, if ever; fixed at first use, before "
        "there are votes. Default: sanitised.",
    )
    flags.DEFINE_float(
        "planned_profile",
        None,
        "The hypothetical votes that this release is planned for: every query led by this share of "
        "the teachers; fixed at first use. Default: 0.8.",
    )
    flags.DEFINE_integer(
        "max_steps",
        None,
        "Training steps of the student. Default: the student's own, 1000 for supervised; 3000 "
        "for it on a table whose whole pool gets labels from noisy sums of records.",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "batch_size",
        None,
        "Labelled examples a training step. Default: the student's own, 64 for supervised; 256 "
        "where it takes 3000 steps.",
        lower_bound=1,
    )
    flags.DEFINE_float(
        "learning_rate",
        None,
        "Learning rate of Adam; it falls along a cosine, but for gan. Default: the student's own, "
        "0.002 for supervised; 0.005 where it takes 3000 steps.",
    )
    flags.DEFINE_string(
        "model",
        None,
        "Keras model of the student: cnn, wide_cnn, mlp, deeper, paper_mnist, paper_svhn or "
        "module:function. "
        "Default: cnn for images, mlp otherwise; gan brings its own networks.",
    )
    flags.DEFINE_boolean("deeper", False, "Short for --model=deeper.")
    flags.DEFINE_enum(
        "student",
        "supervised",
        ["supervised", "gan", "consistency", "random_forest", "distillation"],
        "How the student learns: a Keras model by cross-entropy on the noisy labels; PATE-G, an "
        "improved GAN on them and on all images of the pool; a Keras model that must agree with "
        "itself on changed inputs of the pool besides; or a random forest on the noisy labels "
        "(short for --model=random_forest). distillation is NOT PRIVATE: see "
        "--non_private_comparison.",
    )
    flags.DEFINE_boolean(
        "non_private_comparison",
        False,
        "With --student=distillation: compare a student of the teachers' averaged probabilities "
        "with one of labels by plurality, both without noise. NOTHING of it is private, nothing "
        "is exported and nothing is charged; the result goes to TRAIN_DIR/sensitive.",
    )
    flags.DEFINE_float(
        "temperature", 1.0, "What distillation divides logits by; the larger, the smoother."
    )
    flags.DEFINE_enum(
        "evaluate_on",
        "held_out",
        ["held_out", "all_unqueried"],
        "Public samples that the student's accuracy is measured on: those outside of the pool, or "
        "these and all of the pool that was not put to the teachers, which a student may have "
        "learnt from without labels or with inferred ones. The latter flatters strategies that "
        "ask about hard samples.",
    )
    flags.DEFINE_boolean(
        "save_labels", True, "Keep the noisy labels in TRAIN_DIR/released/labels.npz."
    )
    flags.DEFINE_list(
        "export_formats",
        [],
        "Formats to write a Keras student in besides the SavedModel: onnx (needs the package "
        "tf2onnx), litert, or both with a comma between; they lie in assets.extra of the exported "
        "version.",
    )
    flags.DEFINE_integer(
        "seed",
        0,
        "Seed of the student's initial weights, shuffling and augmentation. No privacy noise comes "
        "from it.",
        lower_bound=0,
        upper_bound=2**31 - 1,
    )
    flags.DEFINE_integer(
        "insecure_seed",
        None,
        "Draw the privacy noise from this seed, for tests and demonstrations. NOTHING is private "
        "then; ledger and statement say so for ever.",
        lower_bound=0,
    )
    flags.DEFINE_string("report_file", None, "Where to write what is printed, as JSON (sensitive).")
    for name in ("learning_rate", "epsilon_budget", "target_epsilon", "temperature"):
        flags.register_validator(
            name,
            lambda value: value is None or 0.0 < value < float("inf"),
            message="expected a finite number above 0",
        )
    flags.register_validator(
        "delta", lambda value: 0.0 < value < 1.0, message="expected a number between 0 and 1"
    )
