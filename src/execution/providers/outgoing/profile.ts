import type { Dialect, ProviderType } from '../model.ts'

/** What a vendor requires of a request beyond its format. Rules of November 2026. */
export type OutgoingProfile = {
  /** Whether the first message may be one of the assistant. */
  assistantFirst: boolean
  /** Whether the last message may be one of the assistant. */
  assistantLast: boolean
  /** Whether messages of the user and of the assistant must alternate. */
  alternates: boolean
  /** Whether results may be followed by a message of the user. */
  userAfterResults: boolean
  /** Whether a message with a document must have a text, and a result must not be blank. */
  needsTexts: boolean
  /** Whether a message with calls must have reasoning. */
  callsNeedReasoning: boolean
  /** Ids of tool calls that are accepted unchanged. */
  callIds: RegExp
  /** Characters of ids that replace others. */
  callIdLength: number
  /** Names of tools that are accepted unchanged. */
  toolNames: RegExp
  /** Names of properties of a tool's arguments that are accepted unchanged; null if all are. */
  propertyNames: RegExp | null
  /** Whether a schema of arguments may have alternatives at its top. */
  topAlternatives: boolean
  /** Whether a schema of arguments may have references. */
  references: boolean
}

const IDENTIFIER = /^[a-zA-Z0-9_-]{1,64}$/
const PROPERTY = /^[a-zA-Z0-9_.-]{1,64}$/

const OPENAI: OutgoingProfile = {
  assistantFirst: true,
  assistantLast: true,
  alternates: false,
  userAfterResults: true,
  needsTexts: false,
  callsNeedReasoning: false,
  callIds: /^[\x21-\x7e]{1,40}$/,
  callIdLength: 32,
  toolNames: IDENTIFIER,
  propertyNames: null,
  topAlternatives: false,
  references: true,
}

const ANTHROPIC: OutgoingProfile = {
  ...OPENAI,
  assistantFirst: false,
  assistantLast: false,
  callIds: IDENTIFIER,
  propertyNames: PROPERTY,
}

const GOOGLE: OutgoingProfile = {
  ...OPENAI,
  assistantFirst: false,
  alternates: true,
  callIds: /^/,
  toolNames: /^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$/,
  topAlternatives: true,
  references: false,
}

const TYPES: Partial<Record<ProviderType, OutgoingProfile>> = {
  anthropic: ANTHROPIC,
  bedrock: { ...ANTHROPIC, needsTexts: true },
  google: GOOGLE,
  vertex: GOOGLE,
}

const NO_PREFILL: OutgoingProfile = { ...OPENAI, assistantLast: false }
const MISTRAL: OutgoingProfile = {
  ...NO_PREFILL,
  userAfterResults: false,
  callIds: /^[a-zA-Z0-9]{9}$/,
  callIdLength: 9,
}
const THINKING: OutgoingProfile = { ...OPENAI, callsNeedReasoning: true }

const DIALECTS: Partial<Record<Dialect, OutgoingProfile>> = {
  mistral: MISTRAL,
  deepseek: THINKING,
  kimi: THINKING,
  openrouter: NO_PREFILL,
  llamacpp: NO_PREFILL,
  ollama: { ...OPENAI, alternates: true },
}

/** Servers of open models, which have the rules of the model's template. */
const TEMPLATED = new Set<Dialect>(['vllm', 'llamacpp', 'lmstudio'])
const MISTRAL_MODEL = /(mi|mini|magi|dev|code)stral|mixtral/i
const MISTRAL_TEMPLATE: OutgoingProfile = { ...MISTRAL, assistantFirst: false, alternates: true }

/** Returns the profile of a model, by its provider's type and dialect of the OpenAI API. */
export function outgoingProfile(type: ProviderType, dialect: Dialect, model: string): OutgoingProfile {
  if (!TYPES[type] && TEMPLATED.has(dialect) && MISTRAL_MODEL.test(model)) return MISTRAL_TEMPLATE
  return TYPES[type] ?? DIALECTS[dialect] ?? OPENAI
}
