import { raise } from '../../core/api/errors.ts'
import type { ToolContext } from '../../core/api/tool-context.ts'
import { tokensIn } from '../../identity/secrets/resolve.ts'
import type { Auth, Execute, Mcp, ToolDefinition } from './model.ts'

/**
 * Tokens in what a tool sends: `{{secret:<id>}}` and `{{context:<key>}}`, filled in for each call, and `{name}` or
 * `${body.name}`, which take arguments.
 */

const SECRET = /\{\{secret:(sec_[A-Za-z0-9]+)\}\}/
const CONTEXT = /\{\{context:([A-Za-z0-9!#$%&'*+.^_`|~-]+)\}\}/
const ONE_SECRET = new RegExp(`^${SECRET.source}$`)
const ONE_CONTEXT = new RegExp(`^${CONTEXT.source}$`)
const FILLED = new RegExp(`${SECRET.source}|${CONTEXT.source}`, 'g')
const PLACEHOLDER = /\$\{body\.(\w+)\}|\{(\w+)\}/g
const PRESET = /\{\{(?:secret|context):/

const strayIn = (text: string, ...allowed: RegExp[]): string[] =>
  tokensIn(text).filter(token => !allowed.some(pattern => pattern.test(token)))

/** Every string of an auth, those in its lists too. */
const textsOf = (auth: Auth): string[] => Object.values(auth).flat()

/** What requests are made of: an `execute`, or an `mcp`. */
export type TokenTemplate = Pick<Execute, 'url' | 'headers' | 'auth' | 'sign'>

/** Tokens of it that stand where they may not, or that there are none of. */
export function misplacedTokens({ url, headers = {}, auth, sign }: TokenTemplate): string[] {
  return [
    ...strayIn(url, ONE_SECRET),
    ...Object.keys(headers).flatMap(name => strayIn(name)),
    ...Object.values(headers).flatMap(value => strayIn(value, ONE_SECRET, ONE_CONTEXT)),
    ...(auth ? textsOf(auth).flatMap(text => strayIn(text, ONE_SECRET)) : []),
    ...(sign ? strayIn(sign, ONE_SECRET) : []),
  ]
}

/** Every text of it that may hold a secret token. */
export const secretTexts = ({ url, headers = {}, auth, sign }: TokenTemplate): string[] => [
  url,
  ...Object.values(headers),
  ...(auth ? textsOf(auth) : []),
  ...(sign ? [sign] : []),
]

/** What a definition and those inside it send. */
export const sendersOf = ({ execute, mcp, pipeline }: Senders): (Execute | Mcp | null | undefined)[] => [
  execute,
  mcp,
  ...(pipeline?.steps ?? []).flatMap(({ tool }) => [tool?.execute, tool?.mcp]),
]
export type Senders = Pick<ToolDefinition, 'execute' | 'mcp' | 'pipeline'>

/** Every text of a definition that may hold a secret token. */
export const secretTextsOf = (tool: Senders): string[] =>
  sendersOf(tool).flatMap(sender => (sender ? secretTexts(sender) : []))

/** Raises INVALID_TEMPLATE_TOKEN with the tokens. */
export function refuseTokens(tokens: readonly string[], where: string): void {
  if (tokens.length === 0) return
  const shown = [...new Set(tokens)].slice(0, 20).map(token => token.slice(0, 200))
  raise('INVALID_TEMPLATE_TOKEN', { message: `${where} holds ${shown[0]}`, meta: { tokens: shown } })
}

/** Secret and context tokens anywhere in presets, which are shown where secrets may not be. */
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
export const isSecretToken = (text: string): boolean => ONE_SECRET.test(text)

/** The names of the arguments that a url takes. */
export const placeholdersOf = (url: string): string[] =>
  [...url.matchAll(PLACEHOLDER)].map(([, body, name]) => body ?? name)

/** A text with its placeholders filled in. */
export const fillPlaceholders = (text: string, value: (name: string) => string): string =>
  text.replace(PLACEHOLDER, (_placeholder, body?: string, name?: string) => value((body ?? name) as string))

/** What tokens stand for in one call. */
export type TokenValues = { secrets: ReadonlyMap<string, string>; context: ToolContext }

/**
 * A text with its tokens filled in, in one pass: what a value holds is never read as a token.
 * @param onMissing called for a context key that the call does not have
 */
export const fillTokens = (
  text: string,
  { secrets, context }: TokenValues,
  onMissing: (key: string) => string,
): string =>
  text.replace(FILLED, (_token, secret?: string, key?: string) =>
    secret !== undefined
      ? (secrets.get(secret) as string)
      : (valueAt(context, key as string) ?? onMissing(key as string)),
  )

/** The value of a context key; keys are headers, so their case does not matter. */
const valueAt = (context: ToolContext, key: string): string | undefined =>
  Object.entries(context).find(([name]) => name.toLowerCase() === key.toLowerCase())?.[1]

/** The first context key that a text asks for and the context does not have; null when it has all. */
export function missingContextKey(text: string, context: ToolContext): string | null {
  for (const [, , key] of text.matchAll(FILLED))
    if (key !== undefined && valueAt(context, key) === undefined) return key
  return null
}

/** What the platform alone may say; sent whatever a tool's list of keys holds. */
const SERVER_KEYS = ['sessionid', 'actorid', 'actorexternalid', 'calling_project_id']

/** The entries of a tool context that a tool is sent: those it lists, and those of the platform. */
export function forwardedContext(context: ToolContext, keys: readonly string[] | null): ToolContext {
  if (keys === null) return context
  const listed = new Set([...keys.map(key => key.toLowerCase()), ...SERVER_KEYS])
  return Object.fromEntries(Object.entries(context).filter(([key]) => listed.has(key.toLowerCase())))
}

/** Values of a tool context that answers may not repeat: they may be credentials. Those of the platform are ids. */
export const contextValues = (context: ToolContext): string[] =>
  Object.entries(context).flatMap(([key, value]) => (SERVER_KEYS.includes(key.toLowerCase()) ? [] : value))
