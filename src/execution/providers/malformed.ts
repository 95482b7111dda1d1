import type { ModelCallOutcome } from './attempt.ts'
import type { ModelFailure } from './failure.ts'
import type { ProviderType } from './model.ts'
import { isRefused, type ModelAnswer } from './model-messages.ts'

/** Reasons with which Google ends an answer that the model wrote wrongly, or for no stated reason. */
const ABNORMAL = ['MALFORMED_FUNCTION_CALL', 'MALFORMED_RESPONSE', 'UNEXPECTED_TOOL_CALL', 'OTHER']

/**
 * Codes with which Groq refuses what its own model wrote wrongly: a call, or JSON. In streams its package drops them and keeps
 * the message.
 */
const REFUSED_CODE = /"(?:tool_use_failed|json_validate_failed)"/
const REFUSED_MESSAGE = /See 'failed_generation' for more details|Tool call validation failed/

const isEmpty = ({ text, tool_calls }: ModelAnswer): boolean => text === '' && tool_calls.length === 0

/** Whether the vendor refuses what its model wrote, as the response or within a stream. */
const isOwnRefusal = ({ message, meta }: ModelFailure): boolean =>
  REFUSED_CODE.test(`"${meta.provider_code}" ${meta.provider_response_body}`) || REFUSED_MESSAGE.test(message)

/** Whether a call is made once more, as the model's answer may be another one then; not after a part of it was shown. */
export function isMalformed(type: ProviderType, outcome: ModelCallOutcome): boolean {
  if (outcome.isShown) return false
  if (!outcome.ok) return isOwnRefusal(outcome.failure)
  const { answer } = outcome
  if (isRefused(answer)) return false
  return isEmpty(answer) && (type === 'google' || type === 'vertex' || answer.reasoning !== undefined)
}

/** Returns why an empty answer is a failure; null for an answer that the vendor ended normally. */
export const abnormalEnd = (answer: ModelAnswer): string | null =>
  isEmpty(answer) && ABNORMAL.includes(answer.vendor_reason ?? '') ? (answer.vendor_reason as string) : null

export const emptyAnswerMessage = ({ vendor_reason, finish_reason }: ModelAnswer): string =>
  `the answer is empty and ended with ${vendor_reason ?? finish_reason}`
