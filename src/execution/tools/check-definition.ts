import type { Context } from '#core/api/operation.ts'
import { type Problem, raise, raiseInvalid } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { expressionProblem } from '#core/expressions/evaluate.ts'
import { lenientSchema, schemaChecks } from '#core/json-schema/checks.ts'
import { HEADER_NAME, HEADER_VALUE, RESERVED_HEADERS } from '#core/net/headers.ts'
import { addressProblems } from '#core/net/refused-address.ts'
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

/** Context for validating a tool definition. */
export type DefinitionCheck = Pick<Context, 'tx' | 'services' | 'allow'> & { project_id: string }

/** Context for validating a definition, which needs no database. */
type ProjectCheck = Pick<DefinitionCheck, 'services' | 'project_id'>

const CONTEXT_KEY = /^[A-Za-z0-9!#$%&'*+.^_`|~-]+$/
const MAX_HEADERS = 64
const MAX_JSON_BYTES = 64 * 1024

const problem = (path: string, message: string, code = 'INVALID_VALUE'): Problem => ({ code, path, message })

/**
 * Validates one definition, of a record or inline.
 * @param at path of the definition in the body, with a trailing dot unless empty
 */
export async function checkDefinition(checking: ProjectCheck, tool: ToolDefinition, at: string): Promise<void> {
  const { services, project_id } = checking
  const { execute, mcp, parameters, preset_parameters, output_mapping, context_keys } = tool
  const tooLarge = sizeProblems({ execute, mcp, preset_parameters }, at)
  if (tooLarge.length > 0) raiseInvalid(tooLarge)
  if (execute) refuseTokens(misplacedTokens(execute), `${at}execute`)
  if (mcp) refuseTokens(misplacedTokens(mcp), `${at}mcp`)
  refuseTokens(presetTokens(preset_parameters), `${at}preset_parameters`)
  const invalidKeys = (context_keys ?? []).filter(key => typeof key !== 'string' || !CONTEXT_KEY.test(key))
  if (invalidKeys.length > 0)
    raise('INVALID_TOOL_CONTEXT_KEY', {
      message: `${at}context_keys contains an invalid context key`,
      meta: { keys: invalidKeys },
    })
  const problems = [
    ...(execute ? executeProblems(execute, services.config.TOOL_CALL_TIMEOUT_MS, `${at}execute`) : []),
    ...(mcp ? mcpProblems(mcp, `${at}mcp`) : []),
    ...actionProblems(tool, at),
  ]
  const mappingProblem = output_mapping && expressionProblem(output_mapping)
  if (mappingProblem) problems.push(problem(`${at}output_mapping`, mappingProblem))
  if (parameters && parameters.type !== 'object')
    problems.push(problem(`${at}parameters.type`, 'must be object, because tools take named arguments'))
  if (problems.length > 0) raiseInvalid(problems)
  if (!parameters) return
  const [message] = await schemaChecks(services).refusals([lenientSchema(project_id, parameters)])
  if (message !== null) raiseInvalid(problem(`${at}parameters`, message))
}

/**
 * Returns the check input of a parameter schema: formats are annotations, unknown keywords are ignored, as by models.
 */
/** Returns the check inputs of the parameter schemas of definitions. */
export const parameterSchemas = (
  project: string | null,
  tools: readonly ({ parameters?: object | null } | null | undefined)[],
) => tools.flatMap(tool => (tool?.parameters ? [lenientSchema(project as string, tool.parameters)] : []))

/**
 * Returns a warning for each address of a definition that the egress rule blocks. The path cannot change the host.
 * @param at path of the definition in the record, with a trailing dot unless empty
 */
export const addressWarnings = (
  services: Services,
  { execute, mcp }: Partial<Pick<ToolDefinition, 'execute' | 'mcp'>>,
  at: string,
): Problem[] =>
  Object.entries({ execute, mcp }).flatMap(([name, sent]) => [
    ...addressProblems(services, `${at}${name}.url`, sent && AUTHORITY.exec(sent.url)?.[0]),
    ...(sent?.auth?.type === 'oauth2_client_credentials'
      ? addressProblems(services, `${at}${name}.auth.token_url`, sent.auth.token_url)
      : []),
  ])

const sizeProblems = (values: Record<string, unknown>, at: string): Problem[] =>
  Object.entries(values).flatMap(([name, value]) =>
    Buffer.byteLength(JSON.stringify(value)) > MAX_JSON_BYTES
      ? [problem(`${at}${name}`, 'must be at most 64 KiB', 'TOO_BIG')]
      : [],
  )

function executeProblems(execute: Execute, ceiling: number, at: string): Problem[] {
  const { auth, body_mode, timeout_ms, sign } = execute
  const problems = requestProblems(execute, at)
  if (auth?.type === 'aws_sigv4' && body_mode === 'multipart')
    problems.push(problem(`${at}.auth`, 'aws_sigv4 signs JSON only, not multipart'))
  if (timeout_ms && timeout_ms > ceiling)
    problems.push(problem(`${at}.timeout_ms`, `must be at most ${ceiling}`, 'TOO_BIG'))
  if (sign && !isSecretToken(sign)) problems.push(problem(`${at}.sign`, 'must be a single secret token'))
  return problems
}

function mcpProblems(mcp: Mcp, at: string): Problem[] {
  const problems = requestProblems(mcp, at)
  if (placeholdersOf(mcp.url).length > 0) problems.push(problem(`${at}.url`, 'must not contain placeholders'))
  return problems
}

function requestProblems({ url, headers = {}, auth }: TokenTemplate, at: string): Problem[] {
  const problems = urlProblems(url, `${at}.url`)
  const names = Object.keys(headers)
  if (names.length > MAX_HEADERS)
    problems.push(problem(`${at}.headers`, `must have at most ${MAX_HEADERS} headers`, 'TOO_BIG'))
  const lower = names.map(name => name.toLowerCase())
  for (const [index, name] of names.entries()) {
    const path = `${at}.headers.${name}`
    if (!HEADER_NAME.test(name)) problems.push(problem(path, 'is not a header name'))
    else if (RESERVED_HEADERS.includes(lower[index])) problems.push(problem(path, 'cannot be set'))
    else if (lower.indexOf(lower[index]) < index) problems.push(problem(path, 'is a duplicate'))
    if (!HEADER_VALUE.test(headers[name])) problems.push(problem(path, 'must be a header value'))
  }
  if (auth) problems.push(...authProblems(auth, `${at}.auth`))
  return problems
}

/** Scheme and host, which must not depend on a call. */
const AUTHORITY = /^https?:\/\/([^/\\?#]+)/i

function urlProblems(url: string, path: string): Problem[] {
  const urlProblem = (message: string) => [problem(path, message)]
  const [start, authority] = AUTHORITY.exec(url) ?? []
  if (start === undefined || authority === undefined) return urlProblem('must be an absolute http or https URL')
  if (/[\0-\x20\x7f\\]/.test(url)) return urlProblem('must not contain spaces, backslashes or control characters')
  if (authority.includes('@')) return urlProblem('must not contain user info')
  if (placeholdersOf(start).length > 0) return urlProblem('allows placeholders only after the host')
  if (holdsSecret(start)) return urlProblem('allows secret tokens only after the host')
  return URL.canParse(start) && URL.canParse(url) ? [] : urlProblem('must be an absolute http or https URL')
}

function authProblems(auth: Auth, at: string): Problem[] {
  if (auth.type !== 'oauth2_client_credentials') return []
  const path = `${at}.token_url`
  if (holdsSecret(auth.token_url)) return [problem(path, 'must not contain secret tokens')]
  return placeholdersOf(auth.token_url).length > 0
    ? [problem(path, 'must not contain placeholders')]
    : urlProblems(auth.token_url, path)
}
