import type { ToolContext } from '#core/api/tool-context.ts'
import { raise } from '#core/base/errors.ts'
import { tokensIn } from '#identity/secrets/resolve.ts'
import type { Auth, Execute, Mcp, ToolDefinition } from './model.ts'

/**
 * Tokens in the requests of a tool: `{{secret:<id>}}` and `{{context:<key>}}`, replaced for each call, and `{name}` or
 * `${body.name}`, placeholders for arguments.
 */

const SECRET = /\{\{secret:(sec_[A-Za-z0-9]+)\}\}/
const CONTEXT = /\{\{context:([A-Za-z0-9!#$%&'*+.^_`|~-]+)\}\}/
const ONLY_SECRET = new RegExp(`^${SECRET.source}$`)
const ONLY_CONTEXT = new RegExp(`^${CONTEXT.source}$`)
const TOKEN = new RegExp(`${SECRET.source}|${CONTEXT.source}`, 'g')
const PLACEHOLDER = /\$\{body\.(\w+)\}|\{(\w+)\}/g
const PRESET = /\{\{(?:secret|context):/

const invalidTokens = (text: string, ...allowed: RegExp[]): string[] =>
  tokensIn(text).filter(token => !allowed.some(pattern => pattern.test(token)))

/** Returns all strings of an auth, including those in lists. */
const authTexts = (auth: Auth): string[] => Object.values(auth).flat()

/** Request configuration: an `execute` or an `mcp`. */
export type TokenTemplate = Pick<Execute, 'url' | 'headers' | 'auth' | 'sign'>

/** Returns tokens that are unknown or in a field that does not allow them. */
export function misplacedTokens({ url, headers = {}, auth, sign }: TokenTemplate): string[] {
  return [
    ...invalidTokens(url, ONLY_SECRET),
    ...Object.keys(headers).flatMap(name => invalidTokens(name)),
    ...Object.values(headers).flatMap(value => invalidTokens(value, ONLY_SECRET, ONLY_CONTEXT)),
    ...(auth ? authTexts(auth).flatMap(text => invalidTokens(text, ONLY_SECRET)) : []),
    ...(sign ? invalidTokens(sign, ONLY_SECRET) : []),
  ]
}

/** Returns all texts that may contain a secret token. */
export const secretTexts = ({ url, headers = {}, auth, sign }: TokenTemplate): string[] => [
  url,
  ...Object.values(headers),
  ...(auth ? authTexts(auth) : []),
  ...(sign ? [sign] : []),
]

/** Returns the request configurations of a definition and its inline steps. */
export const sendersOf = ({ execute, mcp, pipeline }: Senders): (Execute | Mcp | null | undefined)[] => [
  execute,
  mcp,
  ...(pipeline?.steps ?? []).flatMap(({ tool }) => [tool?.execute, tool?.mcp]),
]
export type Senders = Pick<ToolDefinition, 'execute' | 'mcp' | 'pipeline'>

/** Returns all texts of a definition that may contain a secret token. */
export const secretTextsOf = (tool: Senders): string[] =>
  sendersOf(tool).flatMap(sender => (sender ? secretTexts(sender) : []))

/** Raises INVALID_TEMPLATE_TOKEN with the tokens. */
export function refuseTokens(tokens: readonly string[], where: string): void {
  if (tokens.length === 0) return
  const shown = [...new Set(tokens)].slice(0, 20).map(token => token.slice(0, 200))
  raise('INVALID_TEMPLATE_TOKEN', {
    message: `${where} contains the invalid token ${shown[0]}`,
    meta: { tokens: shown },
  })
}

/** Returns secret and context tokens in presets, which are visible where secrets must not be. */
export function presetTokens(value: unknown): string[] {
  if (typeof value === 'string') {
    if (!PRESET.test(value)) return []
    const tokens = tokensIn(value)
    return tokens.length > 0 ? tokens : [value]
  }
  if (typeof value !== 'object' || value === null) return []
  return Object.entries(value).flatMap(([key, item]) => [...presetTokens(key), ...presetTokens(item)])
}

export const holdsSecret = (text: string): boolean => SECRET.test(text)
export const holdsToken = (text: string): boolean => SECRET.test(text) || CONTEXT.test(text)
export const isSecretToken = (text: string): boolean => ONLY_SECRET.test(text)

/** Returns the argument names in a URL. */
export const placeholdersOf = (url: string): string[] =>
  [...url.matchAll(PLACEHOLDER)].map(([, body, name]) => body ?? name)

/** Returns a text with its placeholders replaced. */
export const fillPlaceholders = (text: string, value: (name: string) => string): string =>
  text.replace(PLACEHOLDER, (_placeholder, body?: string, name?: string) => value((body ?? name) as string))

/** Values of tokens in one call. */
export type TokenValues = { secrets: ReadonlyMap<string, string>; context: ToolContext }

/**
 * Returns a text with its tokens replaced in one pass: inserted values are never read as tokens.
 * @param onMissing called for a context key that the call does not have
 */
export const fillTokens = (
  text: string,
  { secrets, context }: TokenValues,
  onMissing: (key: string) => string,
): string =>
  text.replace(TOKEN, (_token, secret?: string, key?: string) =>
    secret !== undefined
      ? (secrets.get(secret) as string)
      : (contextValue(context, key as string) ?? onMissing(key as string)),
  )

/** Returns the value of a context key. Keys are header names, so case is ignored. */
const contextValue = (context: ToolContext, key: string): string | undefined =>
  Object.entries(context).find(([name]) => name.toLowerCase() === key.toLowerCase())?.[1]

/** Returns the first context key in a text that the context lacks; null if it has all. */
export function missingContextKey(text: string, context: ToolContext): string | null {
  for (const [, , key] of text.matchAll(TOKEN))
    if (key !== undefined && contextValue(context, key) === undefined) return key
  return null
}

/** Context keys set only by the platform; always forwarded, whatever keys a tool lists. */
const SERVER_KEYS = ['sessionid', 'actorid', 'actorexternalid', 'calling_project_id']

/** Returns the entries of a tool context that are forwarded to a tool: the keys it lists, and the platform's. */
export function forwardedContext(context: ToolContext, keys: readonly string[] | null): ToolContext {
  if (keys === null) return context
  const listed = new Set([...keys.map(key => key.toLowerCase()), ...SERVER_KEYS])
  return Object.fromEntries(Object.entries(context).filter(([key]) => listed.has(key.toLowerCase())))
}

/**
 * Returns the values of a tool context to mask in responses, since they may be credentials. Platform values are ids and
 * are not masked.
 */
export const contextValues = (context: ToolContext): string[] =>
  Object.entries(context).flatMap(([key, value]) => (SERVER_KEYS.includes(key.toLowerCase()) ? [] : value))
