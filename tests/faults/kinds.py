"""The kinds of faults, and the test that makes each. test_kinds.py holds the table against the tests.

`UNDER` marks a fault of test_under_faults.py, under eight streams: three times in `make test`, twenty in `make soak`.
The others have a test of their own, because they end a start, a worker or a connection, or because a client makes them.
Kills for want of memory and full disks are made by SIGKILL and by the shim: a cgroup or a file system of its own would
need root.
"""

UNDER = (
    "tests/faults/test_under_faults.py",
    "test_under_a_fault_each_stream_gets_its_answer_and_the_worker_recovers",
)

KINDS: dict[str, tuple[str, str]] = {
    "an allocation fails": UNDER,
    "memory is short at the start": (
        "tests/test_cli.py",
        "test_a_small_address_space_is_one_line_and_exit_1",
    ),
    "a context is too large": (
        "tests/test_startup.py",
        "test_a_context_that_memory_cannot_hold_is_refused_with_both_figures",
    ),
    "the disk is full": UNDER,
    "the disk cannot be written": UNDER,
    "the disk is slow": UNDER,
    "the disk cannot be read": UNDER,
    "the cache directory goes": (
        "tests/server/saved/test_keeper.py",
        "test_a_directory_that_has_gone_is_one_warning_and_the_engine_goes_on",
    ),
    "a file of the cache is damaged": (
        "tests/test_prefix_survival.py",
        "test_a_damaged_file_is_one_warning_and_gone_and_the_answer_is_right",
    ),
    "the model's file is cut under its mapping": (
        "tests/faults/test_model_file.py",
        "test_a_model_file_that_is_cut_while_it_is_mapped_ends_the_worker_in_words",
    ),
    "descriptors are scarce": UNDER,
    "descriptors are too few to start": (
        "tests/test_cli.py",
        "test_too_few_open_files_are_one_error_line_and_exit_1",
    ),
    "threads are exhausted": UNDER,
    "stderr is closed": (
        "tests/test_descriptors.py",
        "test_a_worker_without_standard_descriptors_starts_answers_and_ends",
    ),
    "stderr is never read": (
        "tests/test_unread_stderr.py",
        "test_it_answers_streams_and_ends_though_its_log_is_not_read",
    ),
    "the time of day jumps ahead": UNDER,
    "the time of day jumps back": UNDER,
    "the front is stopped": UNDER,
    "the engine is stopped": UNDER,
    "the engine hangs": (
        "tests/server/front/test_watchdog.py",
        "test_a_job_whose_step_never_ends_is_ended_by_the_watchdog",
    ),
    "the engine is killed for want of memory": UNDER,
    "the engine dies while loading": (
        "tests/test_crash_survival.py",
        "test_an_engine_that_dies_while_loading_ends_the_worker_with_its_last_lines",
    ),
    "the engine dies while idle": (
        "tests/test_crash_survival.py",
        "test_an_engine_killed_while_idle_is_replaced",
    ),
    "the engine dies in the drain": (
        "tests/test_crash_survival.py",
        "test_a_job_outlives_a_death_during_the_drain",
    ),
    "the front is killed": (
        "tests/test_crash_survival.py",
        "test_an_engine_leaves_with_a_killed_front_even_from_a_step_that_never_ends",
    ),
    "a client resets its connection": (
        "tests/server/web/test_disconnect.py",
        "test_a_client_that_leaves_while_its_job_decodes",
    ),
    "a client reads nothing": (
        "tests/server/web/test_connections.py",
        "test_an_answer_that_is_not_read_does_not_hold_its_connection",
    ),
    "a name is looked up without end": (
        "tests/faults/test_names.py",
        "test_a_name_that_is_looked_up_without_end_costs_only_the_callback",
    ),
    "the callback never answers": (
        "tests/server/front/test_pool_manager.py",
        "test_a_receiver_that_always_hangs_fails_within_the_budget",
    ),
}
