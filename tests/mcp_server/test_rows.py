"""Which test shows which row of the list of faults (MCP, ownership and time to live)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

ROWS: dict[str, tuple[str, ...]] = {
    "M01 an extra argument": (
        "mcp_server/test_schemas::test_model_and_schema_agree_about_every_argument",
    ),
    "M02 wrong types, null, list": (
        "mcp_server/test_schemas::test_model_and_schema_agree_about_every_argument",
        "mcp_server/test_http_wire::test_arguments_that_are_null_are_none",
        "mcp_server/test_http_wire::"
        "test_arguments_that_are_no_object_are_refused_without_a_word_of_them",
        "mcp_server/test_stdio_wire::"
        "test_arguments_that_are_no_object_are_refused_without_a_word_of_them",
    ),
    "M04 a tool that breaks": (
        "mcp_server/test_logs::test_a_tool_that_breaks_shows_its_secret_to_nobody",
    ),
    "M05 an unknown tool": (
        "mcp_server/test_sandbox_tools::test_an_unknown_tool_is_a_failure_with_a_fixed_text",
    ),
    "M10 large ids": (
        "mcp_server/test_http_wire::test_an_id_is_echoed_exactly",
        "mcp_server/test_stdio_wire::test_an_id_is_echoed_exactly",
    ),
    "M11 M12 an id in flight": (
        "mcp_server/test_http_wire::"
        "test_in_one_session_an_id_in_flight_is_refused_and_the_first_call_unhurt",
        "mcp_server/test_http_wire::test_on_2026_07_28_the_same_id_is_served_twice_at_once",
        "mcp_server/test_stdio_wire::"
        "test_a_second_request_with_an_id_in_flight_is_refused_without_it_and_the_first_unhurt",
        "mcp_server/test_stdio_wire::"
        "test_a_cancelled_id_is_free_once_its_handler_has_ended_and_nothing_was_written",
        "mcp_server/test_envelopes::test_ids_that_the_sdk_takes_for_one_are_one",
    ),
    "M13 32 uploads at once": (
        "mcp_server/test_binary_files::test_32_uploads_at_once_keep_their_bytes_apart",
    ),
    "M14-M19 cancellation": (
        "mcp_server/test_http_wire::test_up_to_2025_11_25_a_call_runs_on_when_its_client_disconnects",
        "mcp_server/test_http_wire::"
        "test_on_2026_07_28_a_call_is_cancelled_when_its_client_disconnects",
        "mcp_server/test_http_wire::test_a_sandbox_made_for_a_lone_call_that_is_cancelled_is_destroyed",
        "mcp_server/test_http_wire::test_a_cancelled_notification_ends_the_call_and_frees_its_id",
        "mcp_server/test_commands::test_a_cancelled_call_kills_its_process_group",
    ),
    "M20-M22 DELETE": (
        "mcp_server/test_http_wire::"
        "test_a_delete_in_the_middle_of_a_call_ends_it_with_nothing_half_written",
        "mcp_server/test_http_wire::test_a_session_that_was_ended_is_unknown",
    ),
    "M23 a foreign session": (
        "mcp_server/auth/test_principals::"
        "test_a_foreign_session_is_answered_like_one_that_never_was",
    ),
    "M25-M29 header, version, Host, Origin": (
        "mcp_server/test_http_wire::"
        "test_a_header_that_contradicts_the_body_or_an_unknown_version_is_refused",
        "mcp_server/test_http_wire::test_a_host_that_is_not_ours_is_421",
        "mcp_server/test_http_wire::test_a_foreign_origin_is_403_whatever_the_method",
    ),
    "M30 M31 the end of input, and prints": (
        "mcp_server/test_stdio_wire::"
        "test_the_end_of_input_in_the_middle_of_a_call_ends_call_process_and_sandbox_in_time",
        "mcp_server/test_stdio_wire::test_nobody_waits_for_the_interpreter_to_be_taken_apart",
        "mcp_server/test_stdio_wire::test_what_is_printed_never_gets_onto_the_wire",
    ),
    "M32 a slow body": (
        "mcp_server/test_http_wire::test_a_body_that_does_not_arrive_is_cut_at_the_deadline",
    ),
    "M33 long and malformed lines": (
        "mcp_server/test_stdio_wire::"
        "test_a_line_of_the_limit_is_served_and_one_byte_more_is_refused_with_its_id",
        "mcp_server/test_stdio_wire::"
        "test_the_answer_to_a_long_line_has_its_id_only_where_that_is_sure",
        "mcp_server/test_stdio_wire::test_a_malformed_line_is_answered_and_the_next_one_served",
        "mcp_server/test_http_wire::test_a_lone_surrogate_is_invalid_input_on_2026_07_28",
        "mcp_server/test_http_wire::test_a_body_that_is_no_json_gets_a_fixed_text_in_both_eras",
    ),
    "M34 the largest file": (
        "mcp_server/test_binary_files::test_the_largest_file_comes_back_with_the_same_digest",
        "mcp_server/test_stdio_wire::"
        "test_the_largest_file_goes_both_ways_in_one_line_each_in_both_eras",
    ),
    "M35 the second call on 2026-07-28 STDIO": (
        "mcp_server/test_stdio_wire::test_a_sandbox_made_on_2026_07_28_is_there_at_the_next_call",
    ),
    "M36 the TypeScript client and errors": (
        "mcp_server/test_typescript::test_the_typescript_client_accepts_successes_and_errors",
        "mcp_server/test_schemas::test_every_failure_fits_the_output_schema",
    ),
    "session close, created and adopted": (
        "mcp_server/test_scopes::"
        "test_a_stdio_process_ends_what_it_made_and_adopted_and_nothing_else",
        "mcp_server/test_scopes::"
        "test_every_file_tool_adopts_a_named_sandbox_for_the_session_and_delete_ends_it",
        "mcp_server/test_scopes::test_an_idle_session_ends_with_its_sandboxes",
        "mcp_server/test_retained::"
        "test_a_retained_task_outlives_its_session_and_is_found_by_the_next",
    ),
    "a destroy that takes long": (
        "mcp_server/test_reaper::"
        "test_a_slow_destroy_is_recorded_until_it_is_done_and_drain_is_bounded",
        "mcp_server/test_stdio_wire::"
        "test_a_destroy_that_takes_longer_than_the_process_may_is_finished_after_its_end",
    ),
    "kill -9": (
        "mcp_server/test_retained::"
        "test_the_embedded_service_outlives_its_server_until_the_task_ends_and_leaves_nothing",
        "express/test_child::test_what_a_crashed_instance_left_is_swept_and_a_living_one_is_not",
    ),
    "adopting from two sessions": (
        "mcp_server/test_scopes::test_two_sessions_cannot_own_one_sandbox",
    ),
    "the end of its time in the middle of an upload": (
        "mcp_server/test_ttl::"
        "test_a_sandbox_that_ends_in_the_middle_of_an_upload_gives_exactly_one_result",
    ),
    "connecting never shortens": ("mcp_server/test_ttl::test_a_file_tool_never_shortens",),
    "a lease while bytes flow": ("mcp_server/test_ttl::test_a_sandbox_lives_while_bytes_flow",),
    "a time of 0": (
        "mcp_server/test_sandbox_tools::test_a_time_out_of_range_is_refused_and_never_replaced",
    ),
    "looking and setting a time adopt nothing": (
        "mcp_server/test_scopes::"
        "test_a_stdio_process_ends_what_it_made_and_adopted_and_nothing_else",
        "mcp_server/test_tasks::test_looking_at_a_task_renews_its_sandbox_and_listing_does_not",
    ),
    "404 is done, 5xx is retried": (
        "mcp_server/test_reaper::test_destroyed_and_unknown_both_count_as_gone",
        "mcp_server/test_reaper::test_a_failing_destroy_is_tried_again",
    ),
    "a pidfd is what gets killed": (
        "express/isolation/test_entering::test_killing_an_entering_process_ends_that_command_alone",
    ),
    "100 sessions": (
        "mcp_server/test_closing::test_closed_sessions_leave_no_process_no_socket_and_no_directory",
        "mcp_server/test_closing::test_a_server_that_stops_takes_every_session_with_it",
    ),
}


def defined(file: Path) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, kinds)}


@pytest.mark.parametrize("row", ROWS)
def test_every_row_has_a_test_that_exists(row: str) -> None:
    for named in ROWS[row]:
        file, _, name = named.partition("::")
        assert name in defined(TESTS / f"{file}.py"), named
