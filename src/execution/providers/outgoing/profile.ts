import type { ProviderType } from '../model.ts'

/** What a vendor requires of a request beyond its format. Rules of November 2026. */
export type OutgoingProfile = {
  /** Whether the first message may be one of the assistant. */
  assistantFirst: boolean
  /** Whether the last message may be one of the assistant. */
  assistantLast: boolean
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
  callIds: /^/,
  toolNames: /^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$/,
  topAlternatives: true,
  references: false,
}

const PROFILES: Partial<Record<ProviderType, OutgoingProfile>> = {
  anthropic: ANTHROPIC,
  bedrock: ANTHROPIC,
  google: GOOGLE,
  vertex: GOOGLE,
}

/** Returns the profile of a provider type. */
export const outgoingProfile = (type: ProviderType): OutgoingProfile => PROFILES[type] ?? OPENAI
