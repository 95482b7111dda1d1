/** Revision with stateless requests. */
export const MODERN = '2026-07-28'

/** Revision of a client that names none, and the only one with batches. */
export const FIRST = '2025-03-26'

/** Revisions that start with `initialize`, newest first. */
export const OLD: readonly string[] = ['2025-11-25', '2025-06-18', FIRST]

/** Extension for tasks. */
export const TASKS = 'io.modelcontextprotocol/tasks'
