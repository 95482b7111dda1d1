import { z } from 'zod'
import {
  listAccessibleIds,
  REFERENCE_PERMISSIONS,
  requireReferencePermissions,
} from '#automation/orchestrations/definition/references.ts'
import { quoteName } from '#automation/orchestrations/definition/validate.ts'
import { triggerKind } from '#automation/triggers/model.ts'
import type { Context } from '#core/api/operation.ts'
import type { Problem } from '#core/base/errors.ts'
import { type Queryable, sql } from '#core/db/sql.ts'
import type { PlaybookStep } from './definition.ts'

/** Reference field and kind of resource, by step type. */
const REFERENCE_FIELDS = {
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
      typeof type === 'string' && Object.hasOwn(REFERENCE_FIELDS, type)
        ? REFERENCE_FIELDS[type as keyof typeof REFERENCE_FIELDS]
        : []
    const id: unknown = field && step[field]
    const at = `steps[${index}]`
    return kind && typeof id === 'string' && id !== '' ? [{ kind, id, path: `${at}.${field}`, step, at }] : []
  })

/** Permissions that writing a playbook may require in addition to its own. */
export const STEP_PERMISSIONS = [...REFERENCE_PERMISSIONS, 'triggers:CreateTrigger']

/**
 * Checks the permissions required by the references of steps, because they are not checked when an execution is
 * started. Waiting for an event requires the permission of an event trigger.
 * @throws FORBIDDEN
 */
export async function requireStepPermissions(
  { tx, allow }: Pick<Context, 'tx' | 'allow'>,
  project: string,
  steps: readonly PlaybookStep[],
): Promise<void> {
  if (steps.some(({ type, event }) => type === 'wait' && event != null))
    allow('triggers:CreateTrigger', { kind: triggerKind, project_id: project })
  await requireReferencePermissions({ tx, allow }, project, referencesOf(steps))
}

const toolRow = sql.type(z.object({ id: z.string(), type: z.string() }))

/**
 * Returns problems of references to resources that the project neither owns nor has a share of, or that steps cannot
 * use. One statement per kind.
 */
export async function referenceProblems(
  db: Queryable,
  project: string,
  steps: readonly PlaybookStep[],
): Promise<Problem[]> {
  const references = referencesOf(steps)
  const existing = new Set<string>()
  for (const [kind, named] of Map.groupBy(references, reference => reference.kind)) {
    const ids = named.map(({ id }) => id)
    for (const id of await listAccessibleIds(db, kind, project, ids)) existing.add(id)
  }
  const toolIds = references.filter(({ kind, id }) => kind === 'tool' && existing.has(id)).map(({ id }) => id)
  const found =
    toolIds.length === 0
      ? []
      : await db.any(toolRow`select id, type from tools where id = any(${sql.array(toolIds, 'text')})`)
  const types = new Map(found.map(({ id, type }) => [id, type]))
  return references.flatMap(({ id, path, step, at }): Problem[] => {
    if (!existing.has(id))
      return [
        {
          code: 'REFERENCE_NOT_FOUND',
          path,
          message: `does not exist in this project: ${quoteName(id)}`,
        },
      ]
    const type = types.get(id)
    if (type === 'client')
      return [{ code: 'REFERENCE_INVALID', path, message: 'refers to a client tool, which steps cannot call' }]
    if ((type === 'platform' || type === 'mcp') && step.operation_id == null)
      return [
        { code: 'REFERENCE_INVALID', path: `${at}.operation_id`, message: `is required for tools of type ${type}` },
      ]
    return []
  })
}
