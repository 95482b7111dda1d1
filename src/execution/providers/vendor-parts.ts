import type { LanguageModelV4Content, LanguageModelV4StreamPart, LanguageModelV4Text } from '@ai-sdk/provider'
import { storableText, storableValue } from '#core/base/storable-text.ts'
import { parseModelArguments, unmarked } from './exact-arguments.ts'
import type { VendorPart } from './model-messages.ts'

type Block = Extract<LanguageModelV4Content, { type: 'text' | 'reasoning' }>

/** Puts the pieces of a stream together, in the order in which their blocks began. */
export class ContentReader {
  readonly #parts: LanguageModelV4Content[] = []
  readonly #texts: string[][] = []
  readonly #open = new Map<string, number>()

  read(part: LanguageModelV4StreamPart): void {
    if (part.type === 'tool-call' || part.type === 'source' || (part.type === 'tool-result' && !part.preliminary)) {
      this.#parts.push(part)
      return
    }
    const [kind, event] = part.type.split('-')
    if (kind !== 'text' && kind !== 'reasoning') return
    const { id, delta, providerMetadata, citations } = part as { id: string } & Partial<Record<'delta', string>> &
      Pick<Block, 'providerMetadata'> &
      Pick<LanguageModelV4Text, 'citations'>
    const key = `${kind} ${id}`
    let at = this.#open.get(key)
    if (at === undefined || event === 'start') {
      at = this.#parts.push({ type: kind, text: '' }) - 1
      this.#texts[at] = []
      this.#open.set(key, at)
    }
    if (delta !== undefined) this.#texts[at].push(delta)
    if (providerMetadata !== undefined) (this.#parts[at] as Block).providerMetadata = providerMetadata
    if (citations !== undefined) (this.#parts[at] as LanguageModelV4Text).citations = citations
  }

  parts(): LanguageModelV4Content[] {
    return this.#parts.map((part, at) =>
      part.type === 'text' || part.type === 'reasoning' ? { ...part, text: this.#texts[at].join('') } : part,
    )
  }
}

/** Returns the ID of the vendor's message that a text is part of: a vendor with such IDs may give several messages. */
const messageIdOf = ({ providerMetadata }: Pick<Block, 'providerMetadata'>): string | undefined =>
  Object.values(providerMetadata ?? {}).flatMap(({ itemId }) => (typeof itemId === 'string' ? itemId : []))[0]

/** Finds the texts before which another message of the vendor has ended; a blank line separates them. */
export class MessageBounds {
  #last: string | undefined
  #isApart = false

  /** Begins a text. */
  begin(part: Pick<Block, 'providerMetadata'>): void {
    const id = messageIdOf(part)
    this.#isApart ||= id !== undefined && this.#last !== undefined && id !== this.#last
    this.#last = id ?? this.#last
  }

  /** Returns what precedes the next piece of the text, which is not empty. */
  separator(hasText: boolean): string {
    const isApart = this.#isApart && hasText
    this.#isApart = false
    return isApart ? '\n\n' : ''
  }
}

/** Returns the text of an answer. */
export function answerText(content: readonly LanguageModelV4Content[]): string {
  const bounds = new MessageBounds()
  let text = ''
  for (const part of content) {
    if (part.type !== 'text') continue
    bounds.begin(part)
    if (part.text !== '') text += bounds.separator(text !== '') + part.text
  }
  return text
}

/** Returns an answer in its order. Other parts, such as sources, need not be sent back. */
export function vendorParts(content: readonly LanguageModelV4Content[]): VendorPart[] {
  let calls = 0
  return content.flatMap((part): VendorPart[] => {
    const metadata = 'providerMetadata' in part && part.providerMetadata ? storableValue(part.providerMetadata) : null
    const more = metadata !== null && { metadata: metadata as VendorPart['metadata'] }
    if (part.type === 'text' || part.type === 'reasoning')
      return [{ type: part.type, text: storableText(part.text), ...more }]
    if (part.type === 'tool-call' && !part.providerExecuted) return [{ type: 'tool_call', position: calls++, ...more }]
    if (part.type === 'tool-call') {
      const input = storableValue(parsedInput(part.input))
      return [{ type: 'vendor_call', ...nameOf(part), input, ...more }]
    }
    if (part.type !== 'tool-result') return []
    const result = storableValue(unmarked(part.result))
    return [{ type: 'vendor_result', ...nameOf(part), result, is_error: part.isError === true, ...more }]
  })
}

const nameOf = ({ toolCallId, toolName }: { toolCallId: string; toolName: string }) => ({
  id: storableText(toolCallId),
  name: storableText(toolName),
})

function parsedInput(input: string): unknown {
  try {
    return parseModelArguments(input)
  } catch {
    return input
  }
}

/** Whether a part is a call that the vendor made itself, or its result. */
const isVendorCall = ({ type }: VendorPart): boolean => type === 'vendor_call' || type === 'vendor_result'

/**
 * Returns texts and calls with the phases that the vendor gave to its messages, such as `commentary`, without its other marks;
 * null if there are none. The vendor requests them back in later turns too.
 */
export function phasedParts(parts: readonly VendorPart[] | null | undefined): VendorPart[] | null {
  if (!parts?.some(hasPhase)) return null
  return parts.flatMap(({ metadata = {}, ...part }): VendorPart[] => {
    if (part.type !== 'text' && part.type !== 'tool_call') return []
    const phases = Object.entries(metadata).flatMap(([key, { phase }]) => (phase ? [[key, { phase }] as const] : []))
    return [phases.length > 0 ? { ...part, metadata: Object.fromEntries(phases) } : part]
  })
}

const hasPhase = ({ metadata = {} }: VendorPart): boolean => Object.values(metadata).some(({ phase }) => phase)

/** Whether the parts of an answer are kept: calls of the vendor, phases, and with calls of tools all but texts and calls. */
export const isKept = (parts: readonly VendorPart[]): boolean =>
  parts.some(part => isVendorCall(part) || hasPhase(part)) ||
  (parts.some(({ type }) => type === 'tool_call') && parts.some(part => part.type === 'reasoning' || part.metadata))
