import { z } from 'zod'
import { kinds } from '#core/api/kind.ts'
import type { Context } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import { type Fragment, sql } from '#core/db/sql.ts'

/** Guardrails per project, agent or tool. */
const MAX_GUARDRAILS = 20

/** Permission required to detach a guardrail. */
export const detachPermission = 'guardrails:DetachGuardrail'

/** Channel that carries the ID of a project whose guardrails or content mode changed. */
export const projectGuardrailsChannel = 'muster_project_guardrails'

/** Ordered IDs of attached guardrails, without duplicates. */
export const GuardrailIds = z
  .array(z.string().min(1).max(64))
  .overwrite(ids => [...new Set(ids)])
  .max(MAX_GUARDRAILS)

/** Condition: the row has the guardrail attached. */
export const hasGuardrail = (id: string): Fragment => sql.fragment`t.guardrail_ids @> ${sql.array([id], 'text')}`

/** Returns the guardrails that were attached in any old list and are missing from any new list. */
export const removedGuardrails = (
  before: readonly (readonly string[] | null)[],
  after: readonly (readonly string[] | null)[],
): string[] => [...new Set(before.flatMap(ids => ids ?? []))].filter(id => after.some(ids => !ids?.includes(id)))

/**
 * Requires permission to detach guardrails, so that permission to update a resource does not include removing its
 * guardrails.
 * @throws FORBIDDEN with `meta.detached`
 */
export function requireDetach(
  { allowed }: Pick<Context, 'allowed'>,
  project_id: string,
  detached: readonly string[],
): void {
  const kind = kinds.get('guardrail')
  // Evaluates all of them, so that the audit entry lists each.
  const refused = detached.filter(id => !allowed(detachPermission, { kind, row: { id, project_id } }))
  if (refused.length > 0) raise('FORBIDDEN', { meta: { action: detachPermission, detached: refused } })
}
