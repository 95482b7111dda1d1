import { sumAnswer, UNREPORTED } from '#control/usage/meter.ts'
import { MAX_ANNOTATIONS } from './annotations.ts'
import type { ModelAnswer, ModelRequest, ModelUsage, PromptMessage, VendorPart } from './model-messages.ts'

/** Times that one answer is continued. */
export const MAX_PAUSES = 10

/** Characters of a paused answer that is not continued further. */
const MAX_CHARACTERS = 4 * 1024 * 1024

/** Whether a paused answer is too large to be continued. */
export const isLarge = (answer: ModelAnswer | null): boolean =>
  answer !== null && JSON.stringify(partsOf(answer)).length > MAX_CHARACTERS

/** Returns a request for the rest of an answer that the vendor paused: the answer so far follows the history. */
export function continuationOf(request: ModelRequest, answer: ModelAnswer): ModelRequest {
  const { ai_provider_id, model, text } = answer
  const parts = partsOf(answer)
  const message: PromptMessage = {
    role: 'assistant',
    content: [{ type: 'text', text }],
    vendor: { ai_provider_id, model, parts, paused: true },
  }
  return { ...request, messages: [...request.messages, message] }
}

/** Returns an answer that the vendor gave in two calls. */
export function joinAnswers(first: ModelAnswer, rest: ModelAnswer): ModelAnswer {
  const { notes = [] } = first
  const known = new Set(notes.map(note => JSON.stringify(note)))
  const all = [...notes, ...(rest.notes ?? []).filter(note => !known.has(JSON.stringify(note)))]
  const reasoning = [first.reasoning, rest.reasoning].filter(Boolean).join('\n\n')
  const moved = (rest.annotations ?? []).map(each => ({
    ...each,
    start_index: each.start_index + first.text.length,
    end_index: each.end_index + first.text.length,
  }))
  const annotations = [...(first.annotations ?? []), ...moved].slice(0, MAX_ANNOTATIONS)
  return {
    ...rest,
    ...(annotations.length > 0 && { annotations }),
    text: first.text + rest.text,
    vendor_parts: [...partsOf(first), ...partsOf(rest)],
    usage: sumUsage(first.usage, rest.usage),
    ...(reasoning && { reasoning }),
    ...(all.length > 0 && { notes: all }),
  }
}

const partsOf = ({ vendor_parts, text, tool_calls }: ModelAnswer): VendorPart[] =>
  vendor_parts ?? [
    ...(text === '' ? [] : [{ type: 'text' as const, text }]),
    ...tool_calls.map((_, position) => ({ type: 'tool_call' as const, position })),
  ]

/** Returns the usage of an answer in two parts; null if the vendor reported none for both. */
const sumUsage = (a: ModelUsage | null, b: ModelUsage | null): ModelUsage | null =>
  a || b ? sumAnswer([a ?? UNREPORTED, b ?? UNREPORTED]) : null
