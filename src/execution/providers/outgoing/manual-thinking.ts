import type { LanguageModelV4CallOptions, LanguageModelV4Message } from '@ai-sdk/provider'
import type { ProviderType } from '../model.ts'
import type { VendorNote } from '../model-messages.ts'

/** Option with which a request to Claude thinks with a budget, by provider type. */
const OPTIONS: Partial<Record<ProviderType, 'thinking' | 'reasoningConfig'>> = {
  anthropic: 'thinking',
  bedrock: 'reasoningConfig',
}

const VERSION = /claude-[a-z]+-(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)/
/** First version that an effort makes think without a budget. */
const ADAPTIVE = 4.6

/**
 * Turns thinking with a budget off for a turn whose calls were made without reasoning of the model, such as by another model:
 * Claude requires that such a turn begins with its reasoning. With any, thinking stays on: calls may follow each other without
 * reasoning, and Claude refuses reasoning in a turn without thinking. Adaptive thinking requires none.
 */
export function withoutManualThinking(
  type: ProviderType,
  model: string,
  options: LanguageModelV4CallOptions,
): { options: LanguageModelV4CallOptions; notes: VendorNote[] } {
  const option = OPTIONS[type]
  if (!option || !model.includes('claude') || !isUnreasoned(options.prompt)) return { options, notes: [] }
  const own = options.providerOptions?.[type]
  const chosen = (own?.[option] as { type?: unknown } | undefined)?.type
  const { reasoning } = options
  const byEffort = reasoning !== undefined && reasoning !== 'none' && reasoning !== 'provider-default'
  const isManual = chosen === 'enabled' || (chosen === undefined && byEffort && versionOf(model) < ADAPTIVE)
  if (!isManual) return { options, notes: [] }
  const providerOptions = { ...options.providerOptions, [type]: { ...own, [option]: { type: 'disabled' } } }
  const message = 'the calls of this turn have no reasoning of the model'
  return {
    options: { ...options, reasoning: undefined, providerOptions },
    notes: [{ kind: 'setting_left_out', setting: 'thinking', message }],
  }
}

/** Whether the current turn has calls, and no reasoning. */
function isUnreasoned(prompt: readonly LanguageModelV4Message[]): boolean {
  const start = prompt.findLastIndex(({ role }) => role === 'user')
  const parts = prompt.slice(start + 1).flatMap(({ role, content }) => (role === 'assistant' ? content : []))
  return parts.some(isOwnCall) && parts.every(part => part.type !== 'reasoning')
}

const isOwnCall = (part: { type: string; providerExecuted?: boolean }): boolean =>
  part.type === 'tool-call' && !part.providerExecuted

/** Returns the version of a model of Claude; names of versions before 4 have another order. */
function versionOf(model: string): number {
  const [, major = '3', minor = '0'] = VERSION.exec(model) ?? []
  return Number(major) + Number(minor) / 10
}
