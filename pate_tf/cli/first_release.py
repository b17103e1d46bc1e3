"""Flags of the first release that a command does not have any more."""

GONE = (
    *("epochs_per_decay", "dropout_seed", "log_device_placement", "too_small"),
    *("teachers_max_steps", "nb_labels", "moments", "noise_eps"),  # some are other commands' still
)


def hint(error: Exception) -> str:
    """Returns what to add to an error about an unknown flag, if it is one of those."""
    if getattr(error, "flagname", "") not in GONE:
        return ""
    return "; docs/first_release.md says what became of the first release's flags"
