import { z } from 'zod'
import type { Problem } from '../../core/api/errors.ts'
import type { Context } from '../../core/api/operation.ts'
import { type Queryable, sql } from '../../core/db/sql.ts'
import { accessibleIds, NAMING_RIGHTS, requireReferencePermissions } from '../orchestrations/references.ts'
import { quoteName } from '../orchestrations/validate.ts'
import { triggerKind } from '../triggers/model.ts'
import type { PlaybookStep } from './definition.ts'

/** What the fields of steps name, by the types that read them. */
const NAMED = {
  instruct_agent: ['agent_id', 'agent'],
  call_tool: ['tool_id', 'tool'],
  run_orchestration: ['orchestration_id', 'orchestration'],
  ask_decider: ['decider_id', 'decider'],
} as const

type Reference = { kind: string; id: string; path: string; step: PlaybookStep; at: string }

const referencesOf = (steps: readonly PlaybookStep[]): Reference[] =>
  steps.flatMap((step, index) => {
    const { type } = step
    const [field, kind] =
      typeof type === 'string' && Object.hasOwn(NAMED, type) ? NAMED[type as keyof typeof NAMED] : []
    const id: unknown = field && step[field]
    const at = `steps[${index}]`
    return kind && typeof id === 'string' && id !== '' ? [{ kind, id, path: `${at}.${field}`, step, at }] : []
  })

/** The actions that writing a playbook may need beside its own. */
export const STEP_RIGHTS = [...NAMING_RIGHTS, 'triggers:CreateTrigger']

/**
 * Asks whether the caller may do itself what steps have done: whoever starts an execution is not asked. What waits for an
 * event has it as an event trigger would.
 * @throws FORBIDDEN
 */
export async function requireStepRights(
  { tx, allow }: Pick<Context, 'tx' | 'allow'>,
  project: string,
  steps: readonly PlaybookStep[],
): Promise<void> {
  if (steps.some(({ type, event }) => type === 'wait' && event != null))
    allow('triggers:CreateTrigger', { kind: triggerKind, project_id: project })
  await requireReferencePermissions({ tx, allow }, project, referencesOf(steps))
}

const tools = sql.type(z.object({ id: z.string(), type: z.string() }))

/** What steps name that the project does not have or that they cannot use. One statement for each kind that is named. */
export async function referenceProblems(
  db: Queryable,
  project: string,
  steps: readonly PlaybookStep[],
): Promise<Problem[]> {
  const references = referencesOf(steps)
  const there = new Set<string>()
  for (const [kind, named] of Map.groupBy(references, reference => reference.kind)) {
    const ids = named.map(({ id }) => id)
    for (const id of await accessibleIds(db, kind, project, ids)) there.add(id)
  }
  const called = references.filter(({ kind, id }) => kind === 'tool' && there.has(id)).map(({ id }) => id)
  const found =
    called.length === 0
      ? []
      : await db.any(tools`select id, type from tools where id = any(${sql.array(called, 'text')})`)
  const types = new Map(found.map(({ id, type }) => [id, type]))
  return references.flatMap(({ kind, id, path, step, at }): Problem[] => {
    if (!there.has(id))
      return [{ code: 'REFERENCE_NOT_FOUND', path, message: `names no ${kind} of the project: ${quoteName(id)}` }]
    const type = types.get(id)
    if (type === 'client')
      return [{ code: 'REFERENCE_INVALID', path, message: 'names a client tool, which no step can call' }]
    if ((type === 'platform' || type === 'mcp') && step.operation_id == null)
      return [
        { code: 'REFERENCE_INVALID', path: `${at}.operation_id`, message: `is required for tools of type ${type}` },
      ]
    return []
  })
}
