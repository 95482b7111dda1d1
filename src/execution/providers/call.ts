import { setTimeout as sleep } from 'node:timers/promises'
import type { Queryable } from '../../core/db.ts'
import { raise } from '../../core/errors.ts'
import type { Services } from '../../core/operation.ts'
import type { ProviderRow } from './model.ts'
import { aiProviderKind } from './model.ts'
import { modelClient } from './models.ts'

/** A stored message of a turn (execution, 0.4). `args` and `result` belong to the tool and are never renamed. */
export type ModelMessage =
  | { role: 'user'; content: string | { type: 'text'; text: string }[] }
  | { role: 'assistant'; content: string | (TextPart | ToolCallPart)[] }
  | { role: 'tool'; content: ToolResultPart[] }

export type TextPart = { type: 'text'; text: string }
export type ToolCallPart = { type: 'tool_call'; tool_call_id: string; tool_name: string; args: unknown }
export type ToolResultPart = {
  type: 'tool_result'
  tool_call_id: string
  tool_name: string
  result: unknown
  error: { code: string; message: string; meta?: Record<string, unknown> } | null
}

export type ModelRequest = {
  system: string | null
  messages: ModelMessage[]
  /** 0 to 2; null is not sent. */
  temperature: number | null
  tools: { name: string; description: string; parameters: object }[]
  tool_choice: 'auto' | 'required' | 'none' | { type: 'tool'; tool_name: string } | null
  /** JSON Schema the final text must satisfy; the caller checks it. */
  output_schema: object | null
  /** Marks the system text, and with it the tool definitions, as a cached prefix. */
  prompt_caching: boolean
  max_output_tokens?: number | null
  top_p?: number | null
  seed?: number | null
  /** Per provider type, passed through: `{ anthropic: {...} }`. */
  provider_options?: Record<string, unknown> | null
  signal: AbortSignal
  /** Given: the answer is streamed and every piece of its text is handed over as it comes. */
  onDelta?: (text: string) => void
}

/** Tokens of one call. `output_tokens` includes `reasoning_tokens`; the input counts do not overlap. */
export type ModelUsage = {
  input_tokens: number
  cached_tokens: number
  cache_write_tokens: number
  output_tokens: number
  reasoning_tokens: number
}

export type ModelAnswer = {
  text: string
  /** `args_error` says why `args` could not be read; they are the raw text then. */
  tool_calls: { id: string; tool_name: string; args: unknown; args_error?: string }[]
  finish_reason: 'stop' | 'length' | 'content-filter' | 'tool-calls' | 'other'
  /** Null when the vendor reported none. */
  usage: ModelUsage | null
  /** The model that was asked for. */
  model: string
  ai_provider_id: string
}

/** The SDK takes 30 MB and a tenth of a second to load: a process that makes no call, a web process, does without it. */
const attempts = () => import('./attempt.ts')

/** The provider of an id as calls need it; null when there is none. */
export const loadProvider = (db: Queryable, id: string): Promise<ProviderRow | null> => aiProviderKind.find(db, id)

/**
 * One answered model call, retried PROVIDER_MAX_RETRIES times on the classes of execution 2.4; a stream only before its
 * first content. Raises AI_PROVIDER_ERROR, AI_PROVIDER_MISCONFIGURED and SECRET_NOT_FOUND with secrets masked. An abort of
 * the caller's signal is thrown as that signal's reason.
 */
export async function callModel(
  services: Services,
  provider: ProviderRow,
  model: string,
  request: ModelRequest,
): Promise<ModelAnswer> {
  const { attemptCall, retryDelay } = await attempts()
  const client = await modelClient(services, provider)
  for (let attempt = 0; ; attempt++) {
    const started = performance.now()
    const outcome = await attemptCall(services, client, provider, model, request)
    const facts = { ai_provider_id: provider.id, model, attempt: attempt + 1, duration_ms: performance.now() - started }
    if (outcome.ok) {
      services.log.debug(facts, 'model call answered')
      return outcome.answer
    }
    const { failure } = outcome
    const delay = attempt < services.config.PROVIDER_MAX_RETRIES ? retryDelay(failure, attempt) : null
    services.log.warn({ ...facts, ...failure.facts, retry_in_ms: delay }, 'model call failed')
    if (delay === null) raise(failure.code, { message: failure.message, meta: failure.meta, cause: failure.cause })
    await sleep(delay, undefined, { signal: request.signal }).catch(() => {})
    request.signal.throwIfAborted()
  }
}
