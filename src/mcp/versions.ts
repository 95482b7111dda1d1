/** The revision whose requests stand by themselves. */
export const MODERN = '2026-07-28'

/** Revisions that begin with `initialize`, newest first. */
export const OLD: readonly string[] = ['2025-11-25', '2025-06-18', '2025-03-26']

/** Extension of long work that is answered as a task. */
export const TASKS = 'io.modelcontextprotocol/tasks'
