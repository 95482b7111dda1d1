import { injectedVersion } from '#core/base/fault-injection.ts'
import { NewerFormatError } from '#core/base/format-versions.ts'
import type { Services } from '#core/base/services.ts'
import { openJson, sealJson } from '#core/secrets/json.ts'
import { type RunContext, type RunRow, runSeal } from '../model.ts'

const EMPTY_CONTEXT: RunContext = { tool_context: null, guardrail_context: null }

/**
 * Version of the context, and of what other columns of a run contain for its workers: a run whose written values, outcomes or
 * progress have a later form has a context in a later version.
 */
const VERSION = 1

const versionOf = (services: Services): number => injectedVersion(services, 'run_context', VERSION)

/**
 * Opens the context that a run passes to its tools and guardrails.
 * @throws SECRET_NOT_DECRYPTABLE, NewerFormatError
 */
export function runToolContext(services: Services, run: Pick<RunRow, 'id' | 'project_id' | 'context'>): RunContext {
  return run.context === null
    ? EMPTY_CONTEXT
    : openJson(services, run.context, runSeal(run), `Context of run ${run.id}`, versionOf(services))
}

/**
 * Checks that this release can continue a run. A context that cannot be decrypted fails the nodes that need it.
 * @throws NewerFormatError
 */
export function requireKnownRun(services: Services, run: Pick<RunRow, 'id' | 'project_id' | 'context'>): void {
  try {
    runToolContext(services, run)
  } catch (error) {
    if (error instanceof NewerFormatError) throw error
  }
}

/** Seals the context of a run and returns its columns, with redacted values in `tool_context`. */
export function sealRunContext(
  services: Services,
  owner: Pick<RunRow, 'id' | 'project_id'>,
  { tool_context, guardrail_context }: RunContext,
): Pick<RunRow, 'context' | 'tool_context'> {
  if (!tool_context && !guardrail_context) return { context: null, tool_context: null }
  return {
    context: sealJson(services, { tool_context, guardrail_context }, runSeal(owner), versionOf(services)),
    tool_context: tool_context && Object.fromEntries(Object.keys(tool_context).map(key => [key, '[redacted]'])),
  }
}

/**
 * Returns the part of a tool context that a nested run receives: the listed keys in any case, or all keys without a
 * list.
 */
export function narrowContext(
  context: Record<string, string> | null,
  keys: readonly string[] | null | undefined,
): Record<string, string> | null {
  if (!context || keys == null) return context
  const allowed = new Set(keys.map(key => key.toLowerCase()))
  return Object.fromEntries(Object.entries(context).filter(([key]) => allowed.has(key.toLowerCase())))
}
