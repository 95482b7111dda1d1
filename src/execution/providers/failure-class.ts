import type { FAILURE_CLASSES } from './model-messages.ts'

/** Class of a failed call; null for a failure of no class, or after a part of the answer was shown. */
export type FailureClass = (typeof FAILURE_CLASSES)[number] | null

/** Whether a failure may pass by itself, so that the same call is repeated. */
export const isTransientClass = (failed: FailureClass): boolean =>
  failed === 'provider_error' || failed === 'timeout' || failed === 'rate_limited'

/**
 * What vendors say, in lower case, in November 2026. The account has no credit: OpenAI, Anthropic, DeepSeek, OpenRouter, xAI.
 * A rate limit of Google names plan and billing too.
 */
const CREDIT =
  /insufficient_quota|billing_not_active|billing_hard_limit|credit balance is too low|insufficient (?:balance|credits)|all available credits/
/** The request or the answer was withheld: OpenAI, Azure, OpenRouter, xAI. */
const REFUSAL =
  /content_policy|content_filter|content management policy|responsibleaipolicy|input was flagged|usage guidelines|prohibited_content/
/** The request is longer than the model takes: OpenAI, Anthropic, Google, Bedrock, Mistral, xAI, servers of open models. */
const CONTEXT_LENGTH =
  /context_length|context length|context window|context size|prompt is too long|input is too long|too many (?:input )?tokens|exceeds? the maximum number of tokens|maximum prompt length|exceed_context_size|request_too_large|string_above_max_length/
/** The model does not exist, or not for this account: OpenAI, Bedrock, Mistral, OpenRouter, Ollama. */
const NOT_FOUND =
  /model_not_found|model identifier is invalid|invalid model|not a valid model|model ["'`]?[\w.:/-]{1,100}["'`]? (?:does not exist|not found)|access to (?:the )?model|deploymentnotfound/
/** The key is refused with another status than 401: Google, xAI. */
const AUTH = /api_key_invalid|api key not valid|incorrect api key|invalid api key|authentication_error/

/**
 * Returns the class of a failure by what the vendor said.
 * @param text message, body and error type of the response
 */
export function failureClassOf({
  status,
  text: said,
  isRetryable,
}: {
  status: number | null
  text: string
  isRetryable: boolean
}): FailureClass {
  if (status === null) return 'provider_error'
  if (status < 400) return null
  const text = said.toLowerCase()
  if (status === 402 || (status < 500 && CREDIT.test(text))) return 'credit'
  if (status === 429) return 'rate_limited'
  if (status >= 500) return 'provider_error'
  // With this status Bedrock reports a failure of the model, not of the request.
  if (status === 424) return text.includes('modelerrorexception') || isBedrockFailure(text) ? 'provider_error' : null
  if ((status === 408 || status === 409) && isRetryable) return 'provider_error'
  if (status === 401) return 'auth'
  if (CONTEXT_LENGTH.test(text) || status === 413) return 'context_length'
  if (REFUSAL.test(text)) return 'refusal'
  if (NOT_FOUND.test(text) || status === 404) return 'not_found'
  return AUTH.test(text) || status === 403 ? 'auth' : null
}

const isBedrockFailure = (text: string): boolean => text.includes('unexpected error during processing')
