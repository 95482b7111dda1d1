import { z } from 'zod'
import { raise } from '../core/api/errors.ts'
import { kinds } from '../core/api/kind.ts'
import type { Context } from '../core/api/operation.ts'
import { type Fragment, sql } from '../core/db/sql.ts'

/** Most guardrails of one project, agent or tool. */
const MAX_GUARDRAILS = 20

/** What taking a guardrail away needs. */
export const detachPermission = 'guardrails:DetachGuardrail'

/** Carries the id of a project whose guardrails, or whose content mode, have changed. */
export const projectGuardrailsChannel = 'muster_project_guardrails'

/** Guardrails that are attached to something, in their order; an id that is there twice counts once. */
export const GuardrailIds = z
  .array(z.string().min(1).max(64))
  .overwrite(ids => [...new Set(ids)])
  .max(MAX_GUARDRAILS)

/** The condition that a row has a guardrail attached. */
export const hasGuardrail = (id: string): Fragment => sql.fragment`t.guardrail_ids @> ${sql.array([id], 'text')}`

/** What was attached in any of the lists and is missing from any of those that take their place. */
export const removedGuardrails = (
  before: readonly (readonly string[] | null)[],
  after: readonly (readonly string[] | null)[],
): string[] => [...new Set(before.flatMap(ids => ids ?? []))].filter(id => after.some(ids => !ids?.includes(id)))

/**
 * Asks whether the caller may detach guardrails: whoever may change what they are attached to may not thereby rid it of its
 * rules. Raises FORBIDDEN with `meta.detached`.
 */
export function requireDetach(
  { allowed }: Pick<Context, 'allowed'>,
  project_id: string,
  detached: readonly string[],
): void {
  const kind = kinds.get('guardrail')
  // Every one is asked for, so that the audit entry names them all.
  const refused = detached.filter(id => !allowed(detachPermission, { kind, row: { id, project_id } }))
  if (refused.length > 0) raise('FORBIDDEN', { meta: { action: detachPermission, detached: refused } })
}
