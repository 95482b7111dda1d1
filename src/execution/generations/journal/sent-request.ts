import type { ModelMessage, ModelRequest, PromptMessage } from '#execution/providers/model-messages.ts'
import type { VendorTools } from '#execution/providers/options/vendor-tool-settings.ts'

/** A request of a step as sent, without the messages of the turn, which are stored elsewhere, and the texts of its search. */
export type SentRequest = Pick<ModelRequest, 'system' | 'tools' | 'tool_choice'> & {
  output_schema: Record<string, unknown> | null
  vendor_tools: VendorTools | null
  /** Settings of the agent or the request; unset ones are absent. */
  settings: Record<string, unknown>
  /** Options by provider type. */
  provider_options: Record<string, unknown> | null
  /** Messages before the history: the summary of older ones. */
  opening: PromptMessage[]
  /** Messages before the last message of the user: additions of the client. */
  reference: PromptMessage[]
  /** Messages of the turn's input that were left out, as ranges of positions without their ends. */
  omitted: [from: number, to: number][]
  /** Whether the tools are named only, because of their size. */
  is_shortened: boolean
}

/** Longest request that is stored with descriptions and schemas of its tools, in characters. */
const MAX_CHARS = 256 * 1024

const SETTINGS = [
  'temperature',
  'top_p',
  'seed',
  'stop',
  'max_output_tokens',
  'prompt_caching',
  'prompt_cache_ttl',
  'store',
] as const

const isSet = (value: unknown): boolean => value !== null && value !== undefined

/** Returns the stored form of a request. `messages`: its input, of which it has `history`. */
export function sentRequest(
  request: ModelRequest,
  parts: Pick<SentRequest, 'opening' | 'reference'> & {
    messages: readonly ModelMessage[]
    history: readonly ModelMessage[]
  },
): SentRequest {
  const settings = SETTINGS.map(name => [name, request[name]] as const)
  return {
    system: request.system,
    tools: request.tools,
    tool_choice: request.tool_choice,
    output_schema: request.output_schema as SentRequest['output_schema'],
    vendor_tools: request.vendor_tools ?? null,
    settings: Object.fromEntries(
      [...settings, ...Object.entries(request.vendor_settings ?? {})].filter(([, value]) => isSet(value)),
    ),
    provider_options: request.provider_options ?? null,
    opening: parts.opening,
    reference: parts.reference,
    omitted: omittedRanges(parts.messages, parts.history),
    is_shortened: false,
  }
}

function omittedRanges(messages: readonly ModelMessage[], history: readonly ModelMessage[]): SentRequest['omitted'] {
  const sent = new Set(history)
  const ranges: SentRequest['omitted'] = []
  for (const [position, message] of messages.entries()) {
    if (sent.has(message)) continue
    const last = ranges.at(-1)
    if (last?.[1] === position) last[1] = position + 1
    else ranges.push([position, position + 1])
  }
  return ranges
}

/**
 * Returns a history with what changes per turn before its last message of the user: what precedes is the same in later turns,
 * so that vendors find it in their caches.
 */
export function withReference<Message extends { role: string }>(
  history: readonly Message[],
  reference: readonly Message[],
): Message[] {
  const last = history.findLastIndex(({ role }) => role === 'user')
  const at = last < 0 ? history.length : last
  return [...history.slice(0, at), ...reference, ...history.slice(at)]
}

/** A row of step_requests to write. */
export type StepRequest = { n: number; body: string }

/** The last request of an attempt, for the write of its step. */
export class SentRequests {
  #written: string | null = null
  #last: { step: number; request: SentRequest } | null = null

  /** Records the request of a step, in place of an earlier one of the same step. */
  record(step: number, request: SentRequest): void {
    this.#last = { step, request }
  }

  /**
   * Returns the recorded request if it must be written, and the function that confirms the write; null if it is written, or
   * equals the one before.
   * @param isUnanswered whether to write it in any case, because no step shows that it was sent
   */
  unwritten(isUnanswered = false): (StepRequest & { written: () => void }) | null {
    if (!this.#last) return null
    const { step, request } = this.#last
    const body = textOf(request)
    if (body === this.#written && !isUnanswered) return null
    return {
      n: step,
      body,
      written: () => {
        this.#written = body
        this.#last = null
      },
    }
  }
}

/** Returns the text of a request. In a long one the tools have no descriptions and schemas; its other parts have own limits. */
function textOf(request: SentRequest): string {
  const text = JSON.stringify(request)
  if (text.length <= MAX_CHARS) return text
  const tools = request.tools.map(({ name }) => ({ name, description: '', parameters: {} }))
  return JSON.stringify({ ...request, tools, is_shortened: true })
}
