/** Revision with stateless requests. */
export const MODERN = '2026-07-28'

/** Revisions that start with `initialize`, newest first. */
export const OLD: readonly string[] = ['2025-11-25', '2025-06-18', '2025-03-26']

/** Extension for tasks. */
export const TASKS = 'io.modelcontextprotocol/tasks'
