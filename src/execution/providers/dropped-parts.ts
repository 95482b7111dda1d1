import type { LanguageModelV4Source, LanguageModelV4ToolCall } from '@ai-sdk/provider'
import { storableText, truncateChars } from '#core/base/storable-text.ts'
import type { ProviderType } from './model.ts'
import type { ModelAnswer, ModelRequest, TokenLogprob, VendorNote } from './model-messages.ts'
import { fieldsOf } from './vendor-json.ts'

/** Bytes of the probabilities of an answer in JSON; further tokens have none. */
const MAX_LOGPROB_BYTES = 256 * 1024
const MAX_TOP = 20
const MAX_TOKEN = 256
/** Sources of an answer; annotations have a lower limit. */
const MAX_SOURCES = 1000

/** Models of Groq that run tools of the vendor without a request for them. */
const COMPOUND = /\bcompound\b/

/** Types of tools of Groq that search the web. */
const SEARCH = /search$/

type Wanted = { logprobs: { top: number } | null; tools: boolean }

/**
 * Reads what the packages drop from the bodies of answers: the probabilities of tokens, and the pages that tools of Groq found.
 * Only requests for either have a reader: the package then returns the body of each event.
 */
export class DroppedParts {
  /** Pages in the order in which tools found them. */
  readonly sources: LanguageModelV4Source[] = []
  /** Searches of tools, which the vendor bills. Its package could not send them back. */
  readonly searches: LanguageModelV4ToolCall[] = []
  readonly #wanted: Wanted
  readonly #logprobs: TokenLogprob[] = []
  #bytes = 0
  #isCut = false

  private constructor(wanted: Wanted) {
    this.#wanted = wanted
  }

  /** Returns a reader for the answer to a request; null if the package returns everything. */
  static of(
    type: ProviderType,
    model: string,
    { vendor_settings: settings }: Pick<ModelRequest, 'vendor_settings'>,
    hasVendorTools: boolean,
  ): DroppedParts | null {
    const logprobs = settings?.logprobs ? { top: Math.min(MAX_TOP, settings.top_logprobs ?? 0) } : null
    const tools = type === 'groq' && (hasVendorTools || COMPOUND.test(model))
    return logprobs || tools ? new DroppedParts({ logprobs, tools }) : null
  }

  /** Reads a whole body, or the body of an event. Vendors write both. */
  read(body: unknown): void {
    const { type, choices, output, logprobs } = fieldsOf(body)
    if (type === 'response.output_text.delta') this.#addLogprobs(logprobs)
    for (const choice of listOf(choices).slice(0, 1)) {
      const { logprobs, delta, message } = fieldsOf(choice)
      this.#addLogprobs(fieldsOf(logprobs).content)
      this.#addSources(fieldsOf(delta ?? message).executed_tools)
    }
    for (const item of listOf(output))
      for (const part of listOf(fieldsOf(item).content)) this.#addLogprobs(fieldsOf(part).logprobs)
  }

  /** Returns what the answer has in addition, and a note if its probabilities are missing or incomplete. */
  addedTo({ text }: Pick<ModelAnswer, 'text'>): { logprobs?: TokenLogprob[]; notes: VendorNote[] } {
    if (!this.#wanted.logprobs || text === '') return { notes: [] }
    const setting = 'logprobs'
    if (this.#logprobs.length === 0)
      return { notes: [{ kind: 'setting_left_out', setting, message: 'the answer has none' }] }
    const message = `only the first ${this.#logprobs.length} tokens have them`
    return { logprobs: this.#logprobs, notes: this.#isCut ? [{ kind: 'setting_changed', setting, message }] : [] }
  }

  #addLogprobs(list: unknown): void {
    const { logprobs: wanted } = this.#wanted
    if (!wanted) return
    for (const each of listOf(list)) {
      if (this.#isCut) return
      const token = tokenOf(each)
      if (!token) continue
      const top = listOf(fieldsOf(each).top_logprobs).slice(0, wanted.top)
      const entry = { ...token, top_logprobs: top.flatMap(other => tokenOf(other) ?? []) }
      this.#bytes += Buffer.byteLength(JSON.stringify(entry))
      this.#isCut = this.#bytes > MAX_LOGPROB_BYTES
      if (!this.#isCut) this.#logprobs.push(entry)
    }
  }

  #addSources(executed: unknown): void {
    if (!this.#wanted.tools) return
    for (const tool of listOf(executed)) {
      const { type, search_results, browser_results } = fieldsOf(tool)
      if (SEARCH.test(String(type)) && this.searches.length < MAX_SOURCES)
        this.searches.push({
          type: 'tool-call',
          toolCallId: `search-${this.searches.length}`,
          toolName: 'web_search',
          input: '{}',
          providerExecuted: true,
        })
      for (const page of [...listOf(fieldsOf(search_results).results), ...listOf(browser_results)]) {
        const { url, title } = fieldsOf(page)
        if (typeof url !== 'string' || this.sources.length >= MAX_SOURCES) continue
        const named = typeof title === 'string' && title !== '' ? { title } : {}
        this.sources.push({ type: 'source', sourceType: 'url', id: `source-${this.sources.length}`, url, ...named })
      }
    }
  }
}

/** Returns a token with its probability; null for another value. */
function tokenOf(value: unknown): Omit<TokenLogprob, 'top_logprobs'> | null {
  const { token, logprob, bytes } = fieldsOf(value)
  if (typeof token !== 'string' || typeof logprob !== 'number') return null
  const isBytes = Array.isArray(bytes) && bytes.length <= MAX_TOKEN && bytes.every(byte => Number.isInteger(byte))
  return { token: storableText(truncateChars(token, MAX_TOKEN)), logprob, bytes: isBytes ? bytes : null }
}

const listOf = (value: unknown): unknown[] => (Array.isArray(value) ? value : [])
