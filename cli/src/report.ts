import type { ApiCommand } from './commands.ts'
import { flagOf } from './commands.ts'
import type { Connection } from './connection.ts'
import { EXIT, exitCodeOf, Failure, isNoAnswer, isRefusal } from './failure.ts'
import { note, visible } from './terminal.ts'

/** What to try next, by code. `{project}` is the option of the project in use. */
const TRY: Record<string, string> = {
  UNAUTHORIZED: 'muster login',
  FORBIDDEN: 'muster users permissions',
  API_KEY_PROJECT_SCOPE: 'muster whoami',
  AGENT_NOT_FOUND: 'muster agents list{project}',
  AI_PROVIDER_NOT_FOUND: 'muster ai-providers list{project}',
  SECRET_NOT_FOUND: 'muster secrets list{project}',
  TOOL_NOT_FOUND: 'muster tools list{project}',
  ACTOR_NOT_FOUND: 'muster actors list{project}',
  APPROVAL_NOT_FOUND: 'muster approvals list{project}',
  APPROVAL_ALREADY_RESOLVED: 'muster approvals get <approval_id>',
  QUOTA_EXCEEDED: 'muster quotas list{project}',
  QUOTA_STORAGE_EXCEEDED: 'muster quotas list{project}',
  PRECONDITION_FAILED: 'read the record again, then send its ETag with --if-match',
  FORMATION_CONFLICT: 'add --force-conflicts to overwrite these changes',
  FORMATION_PLAN_STALE: 'muster formations plan again',
  FORMATION_PROTECTED: 'muster formations update <formation_id> --no-termination-protection',
  IDEMPOTENCY_KEY_REUSED: 'use another --idempotency-key',
}

/** Where an error happened. */
export type ErrorContext = {
  connection?: Connection
  command?: ApiCommand
  args?: Record<string, unknown>
  /** Whether `--json` was given: the error is printed unchanged. */
  isJson?: boolean
}

/** Returns the exit code of an error. */
function codeOfError(error: unknown): number {
  if (error instanceof Failure) return error.exitCode
  if (isRefusal(error)) return exitCodeOf(error.code, error.status)
  if (isNoAnswer(error)) return EXIT.noAnswer
  const { name, code } = error as { name?: string; code?: string }
  if (name === 'WorkFailed') return EXIT.workFailed
  if (name === 'WorkWaits') return EXIT.workWaits
  if (name === 'OAuthError') return code === 'server_error' ? EXIT.server : EXIT.signedOut
  return EXIT.failed
}

/** Prints an error on stderr. Returns the exit code. */
export function reportError(error: unknown, context: ErrorContext = {}): number {
  const code = codeOfError(error)
  const { connection, isJson } = context
  if (isRefusal(error)) {
    if (isJson && connection?.body) note(connection.body)
    else for (const line of refusalLines(error, context)) note(line)
  } else if (isNoAnswer(error)) {
    note(`muster: ${visible(error.message)}`)
    if (connection) {
      const step = connection.step ? `  Step: ${connection.step}` : '  Step: answer'
      const source = addressSource(connection)
      note(`${step} of ${connection.url.origin}, ${source ? `the address of ${source}` : 'the default address'}`)
      if (!source) note('  Try: muster login --url <address of the service>')
    }
  } else {
    const { message, name } = error as Error
    note(`muster: ${visible(message || name, 'lines')}`)
    const hint = error instanceof Failure ? error.hint : name === 'OAuthError' ? 'Try: muster login' : undefined
    if (hint) note(`  ${visible(hint, 'lines')}`)
  }
  if (connection?.options.debug) note((error as Error).stack ?? '')
  return code
}

/** Returns where the address is from; null for the default. */
const addressSource = ({ options, profile, settings }: Connection): string | null =>
  options.url ? '--url' : process.env.MUSTER_URL ? 'MUSTER_URL' : settings.url ? `profile ${profile}` : null

function refusalLines(
  error: Error & {
    code: string
    status: number
    hint: string
    docsUrl: string
    meta: Record<string, unknown>
    requestId: string | null
  },
  { connection, command, args = {} }: ErrorContext,
): string[] {
  const { code, status, hint, docsUrl, meta, requestId } = error
  const project = connection?.projectChoice
  const lines = [`muster: ${visible(error.message)}  (${code}, ${status})`]
  if (status === 404 && command)
    for (const { name } of command.fields.filter(each => each.in === 'path'))
      lines.push(`  ${name}: ${visible(String(args[name]))}${project ? `   in project ${visible(project)}` : ''}`)
  const { problems, ...details } = meta
  for (const problem of Array.isArray(problems) ? problems : []) lines.push(`  ${problemText(problem, command)}`)
  for (const [name, value] of Object.entries(details))
    lines.push(`  ${name}: ${visible(typeof value === 'object' ? JSON.stringify(value) : String(value))}`)
  if (/_HAS_DEPENDENTS$/.test(code) && command?.fields.some(each => each.name === 'force'))
    lines.push('  Add --force to delete it with what depends on it.')
  const next = TRY[code] ?? (code === 'RESOURCE_NOT_FOUND' && command ? listCommand(command) : undefined)
  if (next) lines.push(`  Try: ${next.replace('{project}', project ? ` --project ${project}` : '')}`)
  else if (hint) lines.push(`  ${visible(hint)}`)
  const more = [docsUrl && `More: ${docsUrl}`, requestId && `request ${requestId}`].filter(Boolean).join('     ')
  if (more) lines.push(`  ${visible(more)}`)
  return lines
}

/** Returns the command that lists records of the kind. */
const listCommand = ({ words }: ApiCommand): string => `muster ${words.slice(0, -1).join(' ')} list{project}`

function problemText(problem: unknown, command: ApiCommand | undefined): string {
  const { path = '', message = '' } = problem as { path?: string; message?: string }
  const parts = String(path).replace(/^(body|query|params|path)\./, '')
  const name = /^\w+/.exec(parts)?.[0] ?? ''
  const field = command?.fields.find(each => each.name === name)
  const rest = parts.slice(name.length).replace(/^\./, '')
  const place = !field
    ? String(path)
    : `${field.in === 'path' ? name : `--${flagOf(command!, field)}`}${rest ? ` (${rest})` : ''}`
  return visible(place ? `${place}: ${message}` : String(message))
}
