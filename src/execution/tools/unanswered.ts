import { errorEntry, isErrorCode } from '#core/base/errors.ts'

/** Returns the status of a recorded failure; 500 for an unknown code. */
export const statusOf = (code: unknown): number => (isErrorCode(code) ? errorEntry(code).status : 500)

/**
 * Whether a failed tool call may have had an effect: its receiver did not answer, or an earlier step of a pipeline was made.
 * @param toolStatus status of the receiver's answer; null if there was none
 */
export const isUnanswered = (code: unknown, toolStatus: unknown): boolean =>
  code === 'PIPELINE_STEP_FAILED' || (toolStatus == null && statusOf(code) >= 500)
