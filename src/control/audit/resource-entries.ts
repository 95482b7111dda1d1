import { z } from 'zod'
import type { Context } from '#core/api/operation.ts'
import { auditEntryKind } from './model.ts'
import { listEntriesOf } from './store.ts'

/** Action that entries of a resource require. */
export const READ_ENTRIES = 'audit:ListAuditEntries'

export const ResourceEntries = z
  .array(
    z.object({
      id: z.string().describe('ID of the audit entry'),
      action: z.string().describe('Permission that decided the request'),
      hash: z.string().nullable().describe('Hash of the entry in the chain of the project. Null until it is sealed.'),
    }),
  )
  .nullable()
  .describe(
    'Audit entries of requests for the resource, oldest first, at most 100, among the first 20,000 entries of the project since it was created. Null without permission to list audit entries.',
  )

/** Returns the audit entries of the resource of a request that the caller may list; null without the permission in the project. */
export async function entriesOfResource({
  db,
  resource,
  allowed,
}: Pick<
  Context<unknown, unknown, { id: string; project_id: string; created_at: string }>,
  'db' | 'resource' | 'allowed'
>): Promise<z.output<typeof ResourceEntries>> {
  if (!allowed(READ_ENTRIES, { kind: auditEntryKind, project_id: resource.project_id })) return null
  const entries = await listEntriesOf(db, resource)
  return entries
    .filter(row => allowed(READ_ENTRIES, { kind: auditEntryKind, row }))
    .map(({ id, action, hash }) => ({ id, action, hash }))
}
