import type { LanguageModelV4Content, LanguageModelV4StreamPart } from '@ai-sdk/provider'
import { storableText, storableValue } from '../../core/api/storable-text.ts'
import type { VendorPart } from './model-messages.ts'

type Block = Extract<LanguageModelV4Content, { type: 'text' | 'reasoning' }>

/** Puts the pieces of a stream together, in the order in which their blocks began. */
export class ContentReader {
  readonly #parts: LanguageModelV4Content[] = []
  readonly #texts: string[][] = []
  readonly #open = new Map<string, number>()

  read(part: LanguageModelV4StreamPart): void {
    if (part.type === 'tool-call') {
      this.#parts.push(part)
      return
    }
    const [kind, event] = part.type.split('-')
    if (kind !== 'text' && kind !== 'reasoning') return
    const { id, delta, providerMetadata } = part as { id: string } & Partial<Record<'delta', string>> &
      Pick<Block, 'providerMetadata'>
    const key = `${kind} ${id}`
    let at = this.#open.get(key)
    if (at === undefined || event === 'start') {
      at = this.#parts.push({ type: kind, text: '' }) - 1
      this.#texts[at] = []
      this.#open.set(key, at)
    }
    if (delta !== undefined) this.#texts[at].push(delta)
    if (providerMetadata !== undefined) (this.#parts[at] as Block).providerMetadata = providerMetadata
  }

  parts(): LanguageModelV4Content[] {
    return this.#parts.map((part, at) =>
      part.type === 'text' || part.type === 'reasoning' ? { ...part, text: this.#texts[at].join('') } : part,
    )
  }
}

/** Returns an answer in its order if it has more than texts and calls; otherwise undefined. */
export function vendorParts(content: readonly LanguageModelV4Content[]): VendorPart[] | undefined {
  let calls = 0
  const parts = content.flatMap((part): VendorPart[] => {
    const metadata = 'providerMetadata' in part && part.providerMetadata ? storableValue(part.providerMetadata) : null
    const more = metadata !== null && { metadata: metadata as VendorPart['metadata'] }
    if (part.type === 'tool-call') return [{ type: 'tool_call', position: calls++, ...more }]
    if (part.type === 'text' || part.type === 'reasoning')
      return [{ type: part.type, text: storableText(part.text), ...more }]
    return []
  })
  return parts.some(({ type, metadata }) => type === 'reasoning' || metadata) ? parts : undefined
}
