import { type Problem, raise, raiseInvalid } from '../../core/api/errors.ts'
import type { Context } from '../../core/api/operation.ts'
import { expressionProblem } from '../../core/expressions/evaluate.ts'
import { SchemaError, schemaChecks } from '../../core/json-schema/checks.ts'
import { addressProblems } from '../../core/net/refused-address.ts'
import type { Services } from '../../core/process/services.ts'
import type { Auth, Execute, Mcp, ToolDefinition } from './model.ts'
import { actionProblems } from './platform.ts'
import {
  holdsSecret,
  isSecretToken,
  misplacedTokens,
  placeholdersOf,
  presetTokens,
  refuseTokens,
  type TokenTemplate,
} from './tokens.ts'

/** What checks a definition, and says where in the body it stands. */
export type DefinitionCheck = Pick<Context, 'tx' | 'services' | 'allow'> & { project_id: string }

const CONTEXT_KEY = /^[A-Za-z0-9!#$%&'*+.^_`|~-]+$/
const HEADER_NAME = /^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$/
/** What a request may carry as a header. */
export const HEADER_VALUE = /^[\t\x20-\x7e\x80-\xff]*$/
/** They follow from the address and the body. */
const UNSENDABLE = ['host', 'content-length', 'transfer-encoding', 'connection', 'upgrade']
const MAX_HEADERS = 64
const MAX_JSON_BYTES = 64 * 1024

const problem = (path: string, message: string, code = 'INVALID_VALUE'): Problem => ({ code, path, message })

/** Validates one definition, of a record or inline. `at` is its path in the body, ending in a dot where it has one. */
/** @param stored the definition before: addresses of it are not checked again */
export async function checkDefinition(
  checking: DefinitionCheck,
  tool: ToolDefinition,
  at: string,
  stored: Partial<Pick<ToolDefinition, 'execute' | 'mcp'>> | null = null,
): Promise<void> {
  const { services, project_id } = checking
  const { execute, mcp, parameters, preset_parameters, output_mapping, context_keys } = tool
  const tooLarge = sizeProblems({ execute, mcp, preset_parameters }, at)
  if (tooLarge.length > 0) raiseInvalid(tooLarge)
  if (execute) refuseTokens(misplacedTokens(execute), `${at}execute`)
  if (mcp) refuseTokens(misplacedTokens(mcp), `${at}mcp`)
  refuseTokens(presetTokens(preset_parameters), `${at}preset_parameters`)
  const badKeys = (context_keys ?? []).filter(key => typeof key !== 'string' || !CONTEXT_KEY.test(key))
  if (badKeys.length > 0)
    raise('INVALID_TOOL_CONTEXT_KEY', { message: `${at}context_keys holds what is no key`, meta: { keys: badKeys } })
  const problems = [
    ...(execute ? executeProblems(execute, services.config.TOOL_CALL_TIMEOUT_MS, `${at}execute`) : []),
    ...(mcp ? mcpProblems(mcp, `${at}mcp`) : []),
    ...actionProblems(tool, at),
    ...blockedProblems(services, tool, at, stored),
  ]
  const unusable = output_mapping && expressionProblem(output_mapping)
  if (unusable) problems.push(problem(`${at}output_mapping`, unusable))
  if (parameters && parameters.type !== 'object')
    problems.push(problem(`${at}parameters.type`, 'must be object: a tool takes named arguments'))
  if (problems.length > 0) raiseInvalid(problems)
  if (!parameters) return
  try {
    await schemaChecks(services).checkInTransaction(parametersSchema(project_id, parameters))
  } catch (error) {
    if (!(error instanceof SchemaError)) throw error
    raiseInvalid(problem(`${at}parameters`, error.message))
  }
}

/** A schema of parameters: formats are annotations and unknown keywords are ignored, as models treat them. */
export const parametersSchema = (project: string, parameters: object) => ({
  project,
  text: JSON.stringify(parameters),
  rules: { strict: false },
})

/** Addresses that the egress rule refuses. What stands behind a host cannot change it. */
function blockedProblems(
  services: Services,
  { execute, mcp }: Pick<ToolDefinition, 'execute' | 'mcp'>,
  at: string,
  stored: Partial<Pick<ToolDefinition, 'execute' | 'mcp'>> | null,
): Problem[] {
  const originOf = (sent: TokenTemplate | null | undefined) => sent && AUTHORITY.exec(sent.url)?.[0]
  const tokenUrl = (sent: TokenTemplate | null | undefined) =>
    sent?.auth?.type === 'oauth2_client_credentials' ? sent.auth.token_url : null
  return (['execute', 'mcp'] as const).flatMap(name => {
    const [sent, before] = [{ execute, mcp }[name], stored?.[name]]
    return [
      ...addressProblems(services, `${at}${name}.url`, originOf(sent), originOf(before)),
      ...addressProblems(services, `${at}${name}.auth.token_url`, tokenUrl(sent), tokenUrl(before)),
    ]
  })
}

const sizeProblems = (values: Record<string, unknown>, at: string): Problem[] =>
  Object.entries(values).flatMap(([name, value]) =>
    Buffer.byteLength(JSON.stringify(value)) > MAX_JSON_BYTES
      ? [problem(`${at}${name}`, 'must be at most 64 KiB', 'TOO_BIG')]
      : [],
  )

function executeProblems(execute: Execute, ceiling: number, at: string): Problem[] {
  const { auth, body_mode, timeout_ms, sign } = execute
  const problems = sentProblems(execute, at)
  if (auth?.type === 'aws_sigv4' && body_mode === 'multipart')
    problems.push(problem(`${at}.auth`, 'aws_sigv4 signs JSON only, not multipart'))
  if (timeout_ms && timeout_ms > ceiling)
    problems.push(problem(`${at}.timeout_ms`, `must be at most ${ceiling}`, 'TOO_BIG'))
  if (sign && !isSecretToken(sign)) problems.push(problem(`${at}.sign`, 'must be one secret token'))
  return problems
}

function mcpProblems(mcp: Mcp, at: string): Problem[] {
  const problems = sentProblems(mcp, at)
  if (placeholdersOf(mcp.url).length > 0) problems.push(problem(`${at}.url`, 'takes no arguments'))
  return problems
}

function sentProblems({ url, headers = {}, auth }: TokenTemplate, at: string): Problem[] {
  const problems = urlProblems(url, `${at}.url`)
  const names = Object.keys(headers)
  if (names.length > MAX_HEADERS) problems.push(problem(`${at}.headers`, `must hold at most ${MAX_HEADERS}`, 'TOO_BIG'))
  const lower = names.map(name => name.toLowerCase())
  for (const [index, name] of names.entries()) {
    const path = `${at}.headers.${name}`
    if (!HEADER_NAME.test(name)) problems.push(problem(path, 'is not a header name'))
    else if (UNSENDABLE.includes(lower[index])) problems.push(problem(path, 'cannot be set'))
    else if (lower.indexOf(lower[index]) < index) problems.push(problem(path, 'is there twice'))
    if (!HEADER_VALUE.test(headers[name])) problems.push(problem(path, 'must be a header value'))
  }
  if (auth) problems.push(...authProblems(auth, `${at}.auth`))
  return problems
}

/** Everything up to the path: it may not depend on a call. */
const AUTHORITY = /^https?:\/\/([^/\\?#]+)/i

export function urlProblems(url: string, path: string): Problem[] {
  const wrong = (message: string) => [problem(path, message)]
  const [start, authority] = AUTHORITY.exec(url) ?? []
  if (start === undefined || authority === undefined) return wrong('must be an absolute http or https URL')
  if (/[\0-\x20\x7f\\]/.test(url)) return wrong('must hold no spaces, backslashes or control characters')
  if (authority.includes('@')) return wrong('must not hold user info')
  if (placeholdersOf(start).length > 0) return wrong('takes arguments behind the host only')
  if (holdsSecret(start)) return wrong('takes secrets behind the host only')
  return URL.canParse(start) && URL.canParse(url) ? [] : wrong('must be an absolute http or https URL')
}

function authProblems(auth: Auth, at: string): Problem[] {
  if (auth.type !== 'oauth2_client_credentials') return []
  const path = `${at}.token_url`
  if (holdsSecret(auth.token_url)) return [problem(path, 'must hold no tokens')]
  return placeholdersOf(auth.token_url).length > 0
    ? [problem(path, 'must hold no arguments')]
    : urlProblems(auth.token_url, path)
}
