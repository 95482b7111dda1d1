import type { Services } from '../../../core/process/services.ts'
import { openJson, sealJson } from '../../../core/secrets/json.ts'
import { type RunContext, type RunRow, runSeal } from '../model.ts'

const NONE: RunContext = { tool_context: null, guardrail_context: null }

/** What a run carries to its tools and guardrails. Raises SECRET_NOT_DECRYPTABLE. */
export function runToolContext(services: Services, run: Pick<RunRow, 'id' | 'project_id' | 'context'>): RunContext {
  return run.context === null ? NONE : openJson(services, run.context, runSeal(run), 'The context of the run')
}

/** The same to be stored, with what is shown of it. */
export function sealRunContext(
  services: Services,
  owner: Pick<RunRow, 'id' | 'project_id'>,
  { tool_context, guardrail_context }: RunContext,
): Pick<RunRow, 'context' | 'tool_context'> {
  if (!tool_context && !guardrail_context) return { context: null, tool_context: null }
  return {
    context: sealJson(services, { tool_context, guardrail_context }, runSeal(owner)),
    tool_context: tool_context && Object.fromEntries(Object.keys(tool_context).map(key => [key, '[redacted]'])),
  }
}

/** What of a tool context reaches a nested run: all of it, or the keys that are named, in any casing. */
export function narrowContext(
  context: Record<string, string> | null,
  keys: readonly string[] | null | undefined,
): Record<string, string> | null {
  if (!context || keys == null) return context
  const wanted = new Set(keys.map(key => key.toLowerCase()))
  return Object.fromEntries(Object.entries(context).filter(([key]) => wanted.has(key.toLowerCase())))
}
