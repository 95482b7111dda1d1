/** Time without a turn of the event loop that counts as a stall. */
export const STALL_MS = 1000

/** Name of the global function by which the watchdog thread reads what the main thread does, as JSON. */
export const CURRENT_WORK = 'musterCurrentWork'

/** What a process does in an async context: an operation or a queue, and its tenant. */
export type CurrentWork = { work: string | null; project_id: string | null }

/** A stall that has ended. `stack`: the most frequent stack, innermost function first. */
export type Stall = CurrentWork & { ms: number; stack: readonly string[] }
