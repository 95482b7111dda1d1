import { z } from 'zod'
import type { Context } from '#core/api/operation.ts'
import { auditEntryKind } from './model.ts'
import { listEntriesOfWork } from './store.ts'

/** Action that entries of a turn or run require. */
export const READ_ENTRIES = 'audit:ListAuditEntries'

export const WorkEntries = z
  .array(
    z.object({
      id: z.string().describe('ID of the audit entry'),
      action: z.string().describe('Permission that decided the request'),
      hash: z.string().nullable().describe('Hash of the entry in the chain of the project. Null until it is sealed.'),
    }),
  )
  .nullable()
  .describe(
    'The newest 100 audit entries of requests for it, oldest first. Null without permission to list audit entries.',
  )

/** Returns the audit entries of the turn or run of a request that the caller may list; null without the permission in the project. */
export async function entriesOfWork({
  db,
  resource,
  allowed,
}: Pick<Context<unknown, unknown, { id: string; project_id: string }>, 'db' | 'resource' | 'allowed'>): Promise<
  z.output<typeof WorkEntries>
> {
  if (!allowed(READ_ENTRIES, { kind: auditEntryKind, project_id: resource.project_id })) return null
  const entries = await listEntriesOfWork(db, resource)
  return entries
    .filter(row => allowed(READ_ENTRIES, { kind: auditEntryKind, row }))
    .map(({ id, action, hash }) => ({ id, action, hash }))
}
