import type { ProviderType } from './model.ts'

/** Facts that an answer contains and that the packages do not return. */
export type BodyFacts = { model?: string; tier?: string; usage?: Record<string, unknown> }

/**
 * `openai`: the tier, and the whole usage, of which packages keep only known fields. `google`: the model. Texts and arguments
 * cannot contain the searched names, because their quotes are escaped; arguments of Google, which are no texts, precede the
 * model.
 */
type Format = 'openai' | 'google'

const FORMATS: Partial<Record<ProviderType, Format>> = {
  openai: 'openai',
  azure: 'openai',
  groq: 'openai',
  gateway: 'openai',
  ollama: 'openai',
  custom: 'openai',
  google: 'google',
  vertex: 'google',
}

type Fact = {
  name: string
  /** The name and its value. */
  whole: RegExp
  /** A text that may become it. */
  begun: RegExp
}

const textFact = (name: string): Fact => ({
  name: `"${name}"`,
  whole: new RegExp(`"${name}": ?"([^"\\\\]{1,255})"`, 'y'),
  begun: new RegExp(`"${name}"(?:$|:(?:$| ?$| ?"[^"]*$))`, 'y'),
})

const TIER = textFact('service_tier')
const MODEL = textFact('modelVersion')
/** Numbers, and objects of numbers. */
const USAGE: Fact = {
  name: '"usage"',
  whole: /"usage": ?(\{(?:[^{}]|\{[^{}]*\})*\})/y,
  begun: /"usage"(?:$|:(?:$| ?$| ?\{))/y,
}

/** Characters that may contain the start of a name, and characters of the longest value. */
const OVERLAP = 16
const MAX_HELD = 4096

/** Reads facts from the chunks of a body; the last value of each counts. */
export class BodyReader {
  readonly facts: BodyFacts = {}
  readonly #format: Format
  #held = ''

  private constructor(format: Format) {
    this.#format = format
  }

  /** Returns a reader for the answers of a type of provider; null if its packages return everything. */
  static of(type: ProviderType): BodyReader | null {
    const format = FORMATS[type]
    return format ? new BodyReader(format) : null
  }

  read(chunk: Uint8Array): void {
    const text = this.#held + Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength).toString('latin1')
    let kept = Math.max(0, text.length - OVERLAP)
    const find = ({ name, whole, begun }: Fact): string | undefined => {
      const at = text.lastIndexOf(name)
      if (at === -1) return undefined
      whole.lastIndex = begun.lastIndex = at
      const found = whole.exec(text)?.[1]
      if (found === undefined && text.length - at < MAX_HELD && begun.test(text)) kept = Math.min(kept, at)
      return found
    }
    if (this.#format === 'google') {
      this.facts.model = find(MODEL) ?? this.facts.model
    } else {
      this.facts.tier = find(TIER) ?? this.facts.tier
      const usage = find(USAGE)
      if (usage !== undefined) this.facts.usage = parsed(usage) ?? this.facts.usage
    }
    this.#held = text.slice(kept)
  }
}

function parsed(text: string): Record<string, unknown> | undefined {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
